"""What a run trained, brought back into the file that the model came in. Needs NumPy and onnx alone."""
