"""Celery application and tasks: what the farm does in the background."""
