"""Webhooks: who wants to be told when a job or run ends, and the signed requests that tell them."""
