"""Model definitions of torchvision and transformers, without torchvision's compiled part.

PyTorch's build for CPUs has none that fits. torchvision, which transformers imports too where it is installed,
describes two operators of that part to PyTorch when it is imported, so they are declared here first. No classification
or segmentation network calls them.
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


def transformers() -> Any:
    """The module `transformers`."""
    _library()
    import transformers

    return transformers
