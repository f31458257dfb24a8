"""What each pass does to a small graph or program, as text: one file per pass, renewed by `make golden`."""
