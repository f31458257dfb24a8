"""Brings what a run trained back into the file that the model came in. Needs NumPy and onnx alone."""
