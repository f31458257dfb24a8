"""Running groups of kernel calls part by part of the batch, so that what they hand on stays in the cache."""
