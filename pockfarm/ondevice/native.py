"""`libpockfarm_step.so` as ctypes sees it (compiler/runtime/library/pockfarm.h)."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from pathlib import Path

import numpy as np

from pockfarm.ondevice.errors import StepError

ABI = 1
INPUT, LABEL, OUTPUT, PARAMETER = range(4)
CAUSES = ("", "user", "data", "weights", "limits", "internal")
DTYPES = (np.dtype("float32"), np.dtype("int64"), np.dtype("int32"), np.dtype("bool"))


class NativeTensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 8),
        ("bytes", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("ignored", ctypes.c_int64),
        ("is_shared", ctypes.c_int32),
        ("is_trained", ctypes.c_int32),
    )


class NativeBuild(ctypes.Structure):
    _fields_ = (
        ("batch", ctypes.c_int64),
        ("micro_batches", ctypes.c_int64),
        ("weights_bytes", ctypes.c_uint64),
        ("optimizer_bytes", ctypes.c_uint64),
        ("arena_bytes", ctypes.c_uint64),
        ("memory_bytes", ctypes.c_uint64),
        ("learning_rate", ctypes.c_double),
        ("loss", ctypes.c_char_p),
        ("optimizer", ctypes.c_char_p),
        ("threads", ctypes.c_int32),
    )


class NativeSettings(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int32), ("spare_core", ctypes.c_int32), ("pin", ctypes.c_char_p))


class NativeArray(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


class NativeScore(ctypes.Structure):
    _fields_ = (("samples", ctypes.c_int64), ("loss", ctypes.c_double), ("accuracy", ctypes.c_double))


_LOADED: dict[str, ctypes.CDLL] = {}
_LOADING = threading.Lock()


def load_library(path: Path) -> ctypes.CDLL:
    """The library, once for the same bytes: it may hold any number of steps. Raises: StepError."""
    key = hashlib.sha256(path.read_bytes()).hexdigest()
    with _LOADING:
        if key not in _LOADED:
            _LOADED[key] = _opened(path)
        return _LOADED[key]


def _opened(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path.resolve()))
        abi = library.pockfarm_abi_version()
    except (OSError, AttributeError) as problem:
        needs = "Linux with glibc 2.31 or newer, the target's processor, and a TMPDIR that is not mounted noexec"
        raise StepError(f"{path.name} cannot be loaded: {problem}; it needs {needs}", code="bundle.library") from None
    if abi != ABI:
        raise StepError(
            f"{path.name} has ABI {abi}, this module knows {ABI}: use both of one release", code="bundle.abi"
        )
    pointer, text, count, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
    library.pockfarm_identity.restype = library.pockfarm_error_code.restype = text
    library.pockfarm_error_message.restype = text
    library.pockfarm_steps_done.restype = count
    library.pockfarm_identity.argtypes = (text,)
    library.pockfarm_destroy.argtypes = library.pockfarm_steps_done.argtypes = (pointer,)
    library.pockfarm_load.argtypes = (pointer, pointer, ctypes.c_int32)
    library.pockfarm_save.argtypes = (pointer, text, ctypes.c_int)
    library.pockfarm_train.argtypes = (pointer, pointer, ctypes.c_int32, pointer)
    library.pockfarm_evaluate.argtypes = (pointer, pointer, ctypes.c_int32, count, pointer)
    library.pockfarm_infer.argtypes = (pointer, pointer, ctypes.c_int32, count, pointer, size)
    library.pockfarm_read.argtypes = library.pockfarm_write.argtypes = (pointer, text, pointer, size)
    library.pockfarm_set_learning_rate.argtypes = (pointer, ctypes.c_double)
    library.pockfarm_set_seed.argtypes = (pointer, ctypes.c_uint64)
    library.pockfarm_create.argtypes = (pointer, pointer)
    return library
