"""TensorIR: how expressions, iteration spaces and buffers become TIR, and TIR objects."""
