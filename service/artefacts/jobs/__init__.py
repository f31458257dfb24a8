"""Compile jobs: model, plan, spec and target in; a bundle out."""
