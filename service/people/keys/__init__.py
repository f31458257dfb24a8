"""API keys, and one-time links into the dashboard."""
