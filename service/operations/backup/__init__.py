"""A farm's record as one file: written while the farm works, restored into an empty one."""
