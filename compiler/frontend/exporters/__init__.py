"""What exporters did to the parameters of a module, undone: which tensors are parameters, and what they are called."""
