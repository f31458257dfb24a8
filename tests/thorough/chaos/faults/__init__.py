"""What can be done to a part: one small file per kind. Each confirms that its victim has something in flight, harms it,
and returns when the fault is over and what it had in flight, or None if it could not be confirmed."""
