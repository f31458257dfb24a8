"""From a model to its training step: plan, loss, gradients, optimizer."""
