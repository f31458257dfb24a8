"""Model definitions of torchvision and transformers, with torchvision's compiled part or without.

It fits PyTorch's ordinary build, and none fits the one for CPUs alone. torchvision, which transformers imports too
where it is installed, describes two operators of that part to PyTorch when it is imported: where it cannot be loaded
they are declared here first, and only there, for PyTorch ends a process in which both do it. No classification or
segmentation network calls them.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))


@cache
def _library() -> Any:
    """The declarations, which stand as long as this does; None where the compiled part has its own."""
    found = find_spec("torchvision")
    assert found is not None
    assert found.origin is not None
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        pass
    else:
        return None
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
