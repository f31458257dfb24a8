"""Running sums and linear recurrences along an axis."""
