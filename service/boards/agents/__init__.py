"""The requests of agents: enrol, renew, lease, heartbeat, events, weights, report. Types: `device_agents/wire/`."""
