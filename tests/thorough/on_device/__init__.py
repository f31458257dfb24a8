"""The step without a farm: the bundle's library, its header and example, and the Python wrapper."""
