"""Windows that slide over images of any rank, with 2-D kernels: what convolutions and pools share."""
