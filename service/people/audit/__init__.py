"""The audit log: who did what in an organisation, to what, and with what outcome."""
