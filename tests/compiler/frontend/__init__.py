"""Tests of the ONNX frontend."""
