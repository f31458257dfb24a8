"""Undoes what exporters did to the parameters of a module: decides which tensors are parameters, and what they are
called.
"""
