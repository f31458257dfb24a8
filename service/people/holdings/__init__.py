"""Which files an organisation has: what it sent, and what its own work made."""
