"""The files that an organisation has: what it sent, and what its work made."""
