"""What agents ask: enrol, renew, lease, heartbeat, events, weights, report. Types: `device_agents/wire/`."""
