"""The quotas of an organisation: what it may have and do at once, and how fast."""
