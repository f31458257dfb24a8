"""Optimizer updates as operators, applied in place to a parameter or to a channel slice of it: one record each."""

from __future__ import annotations

from compiler.ops.adafactor import ADAFACTOR
from compiler.ops.adam import ADAM
from compiler.ops.sgd import SGD

OPTIMIZERS = (*SGD, *ADAM, *ADAFACTOR)
