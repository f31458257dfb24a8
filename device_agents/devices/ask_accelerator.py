"""Lists the accelerators that the drivers of this machine know: prints one JSON object for each, or why there is none.

Run as a script by `accelerator.py` (`python -I -S ask_accelerator.py ENGINE`), standard library only: a driver may
crash whoever asks it, or never answer.

Sources: OpenCL 1.2 specification, table 4.3 (`clGetDeviceInfo`); CUDA Driver API (`cuDeviceGetAttribute`: 75 and 76 are
the compute capability, 18 is `INTEGRATED`).
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

OPENCL = ("libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so")
CUDA = ("libcuda.so.1", "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1")
MOST = 16
TEXT_BYTES = 1 << 16
ALL_TYPES = 0xFFFFFFFF
TYPE, MEMORY, UNIFIED, NAME, DRIVER, VERSION, EXTENSIONS = 0x1000, 0x101F, 0x1035, 0x102B, 0x102D, 0x102F, 0x1030
TYPES = {2: "cpu", 4: "gpu", 8: "accelerator"}
MAJOR, MINOR, INTEGRATED = 75, 76, 18


def main() -> None:
    try:
        for row in {"opencl": opencl, "cuda": cuda}[sys.argv[1]]():
            print(json.dumps(row))
    except OSError as problem:
        print(json.dumps({"none": str(problem)}))


def _library(names: Sequence[str]) -> Any:
    """The first that can be loaded. Raises: OSError with the loader's words for the first, which is the usual one."""
    problems = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as problem:
            problems.append(problem)
    raise problems[0]


def opencl() -> Iterator[dict[str, object]]:
    cl = _library(OPENCL)
    platforms, count = (ctypes.c_void_p * MOST)(), ctypes.c_uint(0)
    if code := cl.clGetPlatformIDs(MOST, platforms, ctypes.byref(count)):
        raise OSError(f"clGetPlatformIDs answers {ctypes.c_int(code).value}")
    for platform in platforms[: min(count.value, MOST)]:
        devices, device_count = (ctypes.c_void_p * MOST)(), ctypes.c_uint(0)
        kinds = ctypes.c_uint64(ALL_TYPES)
        if cl.clGetDeviceIDs(ctypes.c_void_p(platform), kinds, MOST, devices, ctypes.byref(device_count)):
            continue
        for device in devices[: min(device_count.value, MOST)]:
            yield _opencl_device(cl, ctypes.c_void_p(device))


def _opencl_device(cl: Any, device: ctypes.c_void_p) -> dict[str, object]:
    def number(what: int) -> int:
        value = ctypes.c_uint64(0)
        cl.clGetDeviceInfo(device, what, ctypes.c_size_t(8), ctypes.byref(value), None)
        return value.value

    def text(what: int) -> str:
        value = ctypes.create_string_buffer(TEXT_BYTES)
        cl.clGetDeviceInfo(device, what, ctypes.c_size_t(TEXT_BYTES), value, None)
        return value.value.decode("utf-8", "replace").strip()

    kind = next((word for bit, word in TYPES.items() if number(TYPE) & bit), "other")
    return {
        "kind": kind,
        "name": text(NAME),
        "version": text(VERSION),
        "driver": text(DRIVER),
        "memory_bytes": number(MEMORY),
        "unified": bool(number(UNIFIED) & 1),
        "capability": "",
        "extensions": text(EXTENSIONS),
    }


def cuda() -> Iterator[dict[str, object]]:
    driver = _library(CUDA)
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGetCount", (ctypes.byref(count),))):
        if code := getattr(driver, name)(*arguments):
            raise OSError(f"{name} answers {code}: {_cuda_words(driver, code)}")
    driver.cuDriverGetVersion(ctypes.byref(version))
    version_text = f"{version.value // 1000}.{version.value % 1000 // 10}"
    for number in range(min(count.value, MOST)):
        yield _cuda_device(driver, number, version_text)


def _cuda_words(driver: Any, code: int) -> str:
    text = ctypes.c_char_p()
    return "unknown error" if driver.cuGetErrorName(code, ctypes.byref(text)) else (text.value or b"").decode()


def _cuda_device(driver: Any, number: int, version: str) -> dict[str, object]:
    device, memory = ctypes.c_int(0), ctypes.c_size_t(0)
    name = ctypes.create_string_buffer(256)

    def attribute(what: int) -> int:
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), what, device)
        return value.value

    driver.cuDeviceGet(ctypes.byref(device), number)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return {
        "kind": "gpu",
        "name": name.value.decode("utf-8", "replace"),
        "version": f"CUDA {version}",
        "driver": version,
        "memory_bytes": memory.value,
        "unified": bool(attribute(INTEGRATED)),
        "capability": f"sm_{attribute(MAJOR)}{attribute(MINOR)}",
        "extensions": "",
    }


if __name__ == "__main__":
    main()
