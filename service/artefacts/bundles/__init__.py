"""Training bundles: what a compile gave."""
