"""Answers that stay open: long polls and streams of events."""
