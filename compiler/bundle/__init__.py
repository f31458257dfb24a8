"""The compiler's output: the archive and its content."""
