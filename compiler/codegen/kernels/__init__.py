"""One module per kernel family, each with `emit` and `workspace_bytes` of (spec, target, threads); see `family`."""
