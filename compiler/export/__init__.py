"""The way from the training graph to ONNX: standard inference operators only, so that inference engines can train."""
