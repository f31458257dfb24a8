"""Row gather, its gradient, and the gradient that updates a table."""
