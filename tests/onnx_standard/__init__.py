"""The ONNX package's own backend cases (`onnx.backend.test`), run through the importer, the evaluator and binaries."""
