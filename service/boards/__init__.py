"""Addresses for boards and for their operators: the agents' protocol, the fleet, canaries, releases of the agent."""
