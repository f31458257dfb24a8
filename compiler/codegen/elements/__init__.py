"""Elements picked, or put, at positions of their own."""
