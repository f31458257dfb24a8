"""What the farm costs under load, as processor time per operation: `make load` (docs/scaling.md)."""
