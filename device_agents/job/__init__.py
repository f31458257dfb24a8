"""A job of a bundle on this device, confined: unpacked, run process by process, its output taken. Knows no farm."""
