"""The gradient of layer norm and RMS norm."""
