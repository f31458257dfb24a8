"""Steps on a real NVIDIA GPU: `python -m pytest tests/gpu`. Where there is none, each says so and is left out."""
