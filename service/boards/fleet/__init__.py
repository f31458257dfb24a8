"""`/devices`: the fleet as its operators see and change it."""
