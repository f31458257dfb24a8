"""The contents that documents written by users may hold."""
