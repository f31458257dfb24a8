"""What an organisation may have and do at once, and how fast."""
