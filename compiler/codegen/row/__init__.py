"""Row-wise kernels: softmax, norms, cross-entropy and their gradients."""
