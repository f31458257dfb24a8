"""The way from ONNX bytes to a typed graph: wire scan, parsing, constant folding, one import row per ONNX operator."""
