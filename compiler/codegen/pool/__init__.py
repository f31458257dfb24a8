"""2-D pooling and its gradients."""
