"""Pages for those who run an organisation, or the farm: one list each, with the form that adds to it."""
