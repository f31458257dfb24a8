"""When devices take no new work because their operators say so: drained, or in a maintenance window."""
