"""The farm's tenants."""
