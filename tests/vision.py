"""torchvision's model definitions, beside a PyTorch that its compiled part was not built for.

torchvision describes two of its own operators to PyTorch when it is imported; they are in that compiled part, so they
are declared here first. No classification or segmentation network calls them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))


@cache
def _library() -> Any:
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    return library


def models() -> Any:
    """The module `torchvision.models`."""
    _library()
    import torchvision.models

    return torchvision.models
