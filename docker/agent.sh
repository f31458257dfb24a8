#!/bin/sh
# The token is needed at the first start only; afterwards the state folder holds the device's own key.
set -eu
set -- --server "$POCKFARM_SERVER" --state /var/lib/pockfarm-agent
if [ -n "${POCKFARM_ENROL_TOKEN:-}" ]; then
    set -- "$@" --enrol-token "$POCKFARM_ENROL_TOKEN"
fi
exec python -m device_agents.agent "$@"
