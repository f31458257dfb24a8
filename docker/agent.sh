#!/bin/sh
# The token ($POCKFARM_ENROL_TOKEN) is needed at the first start only; afterwards the state folder holds the device's own
# key. The agent reads it from the environment: the words of a command can be read by every user of the machine.
set -eu
# Its user owns nothing but this agent, and is jobs' own unless the container runs as root.
[ "$(id -u)" = 0 ] || set -- --run-as "$(id -u)" "$@"
exec python -m device_agents.agent --server "$POCKFARM_SERVER" --state "$POCKFARM_AGENT_STATE" "$@"
