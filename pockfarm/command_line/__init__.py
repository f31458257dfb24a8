"""The words of a command line, and their manual."""
