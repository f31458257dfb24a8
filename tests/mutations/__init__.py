"""Signed things, changed in one place each: whoever opens them must refuse (`make mutations`)."""
