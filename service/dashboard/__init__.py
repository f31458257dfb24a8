"""The dashboard: server-rendered pages on the farm's rows. Readable without JavaScript; nothing from other hosts."""
