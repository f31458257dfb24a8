"""Which equivalent program is taken, and where its values live."""
