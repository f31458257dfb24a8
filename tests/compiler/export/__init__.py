"""Tests of the ONNX export."""
