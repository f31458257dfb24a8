"""Reads an ONNX file: checks it byte by byte first, then parses it into plain records."""
