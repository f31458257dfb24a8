"""Texts for a terminal and for Markdown: tables, summaries, citations, error messages."""
