"""How long things stay, and what takes them when their time is over."""
