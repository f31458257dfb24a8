"""NVIDIA's compiler of CUDA text as a library (NVRTC), from its wheel: it needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from compiler.errors import BuildError

PACKAGE = "nvidia-cuda-nvrtc-cu12"
_MODULE = "nvidia.cuda_nvrtc"
_LIBRARY = Path("lib", "libnvrtc.so.12")
_INSTALL = "in a checkout of the repository: python -m pip install -c constraints.txt '.[cuda]'"
_OPTIONS = ("--std=c++17",)
_NAME = b"kernel.cu"
"""The name of the text in messages; always the same, as it may be written into the code."""


@dataclass(frozen=True, slots=True)
class Code:
    """The compiler's output for a text: code for one generation, and PTX for this and later ones."""

    cubin: bytes
    ptx: bytes


def compile_text(text: str, capability: str, *, where: str) -> Code:
    """The code of CUDA text for a generation, as `sm_87`; the same text gives the same bytes.

    Raises: BuildError where the compiler is not installed, or with its words where it refuses the text.
    """
    nvrtc, program = library(), c_void_p()
    _done(nvrtc.nvrtcCreateProgram(byref(program), text.encode(), _NAME, 0, None, None), "nvrtcCreateProgram", where)
    try:
        options = (f"--gpu-architecture={capability}", *_OPTIONS)
        words = (c_char_p * len(options))(*(option.encode() for option in options))
        with _same_locale():
            refused = nvrtc.nvrtcCompileProgram(program, len(options), words)
        if refused:
            log = _read(nvrtc, program, "ProgramLog", where).rstrip(b"\0").decode(errors="replace").strip()
            raise BuildError(f"NVRTC refuses the text of {where}: {log[-2000:]}", where=where)
        ptx = _read(nvrtc, program, "PTX", where).rstrip(b"\0")
        return Code(_read(nvrtc, program, "CUBIN", where), ptx)
    finally:
        nvrtc.nvrtcDestroyProgram(byref(program))


@contextmanager
def _same_locale() -> Iterator[None]:
    """NVRTC leaves the thread with the locale C, in which Python reads files as ASCII: the one before comes back."""
    libc = ctypes.CDLL(None)
    libc.uselocale.restype, libc.uselocale.argtypes = c_void_p, (c_void_p,)
    before = libc.uselocale(None)
    try:
        yield
    finally:
        libc.uselocale(before)


@cache
def library() -> Any:
    """The compiler, loaded into this process. Raises: BuildError where it is not installed."""
    path = _path()
    if path is None:
        raise BuildError(f"kernels for CUDA need NVRTC, of the package {PACKAGE}", where="NVRTC", hint=_INSTALL)
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as problem:
        raise BuildError(f"NVRTC cannot be loaded: {problem}", where=str(path), hint=_INSTALL) from problem
    handle.nvrtcGetErrorString.restype = c_char_p
    return handle


def version() -> tuple[int, int]:
    """CUDA's version that the compiler is of. Raises: as `library`."""
    major, minor = c_int(), c_int()
    _done(library().nvrtcVersion(byref(major), byref(minor)), "nvrtcVersion", "NVRTC")
    return major.value, minor.value


def _path() -> Path | None:
    """Returns where the package has put the library."""
    try:
        module_spec = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        return None
    folders: Sequence[str] = (module_spec.submodule_search_locations or ()) if module_spec else ()
    paths = [Path(folder) / _LIBRARY for folder in folders]
    return next((path for path in paths if path.exists()), None)


def _read(nvrtc: Any, program: c_void_p, what: str, where: str) -> bytes:
    """Reads one of the outputs that a compiled program holds."""
    size_bytes = c_size_t()
    _done(getattr(nvrtc, f"nvrtcGet{what}Size")(program, byref(size_bytes)), f"nvrtcGet{what}Size", where)
    content = ctypes.create_string_buffer(size_bytes.value)
    _done(getattr(nvrtc, f"nvrtcGet{what}")(program, content), f"nvrtcGet{what}", where)
    return content.raw


def _done(code: int, call: str, where: str) -> None:
    if code:
        words = library().nvrtcGetErrorString(code).decode(errors="replace")
        raise BuildError(f"{call} answered {words}", where=where)
