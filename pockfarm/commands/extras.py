"""Modules that need more than a client has: loaded when a command asks for them, or refused with what installs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from pockfarm.errors import UsageError

ADAPTERS = "pockfarm.fine_tuning.adapter_files"
DELTAS = "pockfarm.fine_tuning.deltas"
FINE_TUNING = "pockfarm.fine_tuning.local"
TRAINED = "pockfarm.fine_tuning.trained_files"


def load_local() -> ModuleType:
    """`pockfarm.local.toolchain`, which needs the compiler and the agent. Raises: UsageError without."""
    return _load("pockfarm.local.toolchain", "the compiler", "worker,agent")


def load_fine_tuning(module: str) -> ModuleType:
    """Loads one of the modules above, which need NumPy and onnx. Raises: UsageError without them."""
    return _load(module, "NumPy and onnx", "fine-tune")


def _load(module: str, needs: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        advice = f"in a checkout of the repository: python -m pip install -c constraints.txt '.[{extra}]'"
        raise UsageError(f"this needs {needs} ({problem})", hint=advice) from None
