"""Recurrent layers for a grid, all steps in one launch, forward and backward."""
