"""PockFarm for people: the Python client (`pockfarm.client.Farm`) and the `pockfarm` command."""
