"""Files that callers give, and files that are written."""
