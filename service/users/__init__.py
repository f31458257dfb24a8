"""People of an organisation."""
