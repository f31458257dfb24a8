"""The way from objects to one executable: the tables and the linker."""
