"""Who did what in an organisation, on what, and what came of it."""
