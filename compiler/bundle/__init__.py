"""What leaves the compiler: the archive and what it holds."""
