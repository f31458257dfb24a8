"""Callers and their rights: keys, sessions, users, permissions, quotas, audit log, request limits."""
