"""The agent as the farm's client: identity, polling, heartbeats, what is sent, when to try again, whom to trust."""
