"""Small runnable models, plans and data."""
