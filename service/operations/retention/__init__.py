"""Retention: how long things stay, and what removes them when their time is over."""
