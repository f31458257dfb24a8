"""Writing and checking graphs: the builder, the verifier, the NumPy meaning of a graph."""
