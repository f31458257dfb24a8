"""What is needed beside this project's environment; what is missing is told with each test that is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu.device import NoGpu, gpu
from compiler.codegen.grid.nvrtc import library
from compiler.errors import CompileError


def missing() -> str:
    """Why steps cannot be built and run here; nothing if they can."""
    try:
        gpu()
        library()
    except NoGpu as problem:
        return f"no GPU: {problem}"
    except CompileError as problem:
        return f"no steps are built here, so check carried ones (python -m benchmarks.gpu check): {problem}"
    return ""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    here = Path(__file__).parent
    own = [item for item in items if here in item.path.parents]
    if own and (reason := missing()):
        for item in own:
            item.add_marker(pytest.mark.skip(reason=reason))
