"""Tables, engine and session of the farm's database (SQLite or PostgreSQL)."""
