"""Where the largest or smallest elements along an axis are."""
