"""The way from a model to its training step: plan, loss, gradients, optimizer."""
