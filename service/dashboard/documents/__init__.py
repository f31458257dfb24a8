"""What documents that users write may hold."""
