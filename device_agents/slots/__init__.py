"""Which of the agent's files runs, and how another takes its place. The standard library and `wire` only."""
