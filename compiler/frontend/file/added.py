"""Whether infinity in a stored tensor is a mask's: it reaches results only where it hides, in a sum or a choice.

A weight that multiplies makes NaN of it, and so does a layer that reads it as a statistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.frontend.file.moves import EVERY, Places, reaches_only
from compiler.frontend.file.source import SourceNode
from compiler.graph import Array

_CHOICES: Places = {
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"), EVERY),
    **dict.fromkeys(("Clip", "IsInf"), (0,)),
    "Where": (1, 2),
}
_TAKES: Mapping[float, Places] = {
    -np.inf: {
        **_CHOICES,
        **dict.fromkeys(("Add", "Sum"), EVERY),
        **dict.fromkeys(("Exp", "LogSoftmax", "ReduceLogSumExp", "Softmax", "Sub"), (0,)),
        "Attention": (3,),
    },
    np.inf: {**_CHOICES, "Sub": (1,)},
}
"""The places where an infinity has a meaning of its own (nothing weighs, or nothing is larger or smaller), by the
infinity.
"""


def is_infinite_mask(name: str, array: Array, readers: Mapping[str, Sequence[SourceNode]]) -> bool:
    """Whether an array holds real numbers, some of them infinite and none NaN, of which every reader takes the infinite
    ones.
    """
    if array.dtype.kind != "f" or not array.size:
        return False
    with np.errstate(invalid="ignore"):
        least, largest = array.min(), array.max()
    signs = [number for number in (least, largest) if np.isinf(number)]
    if not signs or np.isnan(least):
        return False
    return all(reaches_only(name, readers, _TAKES[float(sign)]) for sign in signs)
