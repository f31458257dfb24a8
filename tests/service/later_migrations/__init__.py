"""Migrations of a later release, as an example: they go on from the newest that there is."""
