"""From objects to one executable: the tables and the linker."""
