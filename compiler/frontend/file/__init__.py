"""What an ONNX file says: looked at byte by byte first, then parsed into plain records."""
