"""What the tests of agents share: a farm that plays, and agents as processes."""
