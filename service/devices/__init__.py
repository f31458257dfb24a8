"""Rules about devices, without an address of their own: conditions, strikes, maintenance, what a device offers."""
