"""Recurrent layers, all steps in one kernel, forward and backward."""
