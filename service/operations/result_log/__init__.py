"""The append-only log of results: a Merkle tree whose heads the farm signs."""
