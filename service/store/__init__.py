"""The farm's state and its transactions: database, stored files, signing keys, states, outbox, garbage collection."""
