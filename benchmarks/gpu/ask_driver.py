"""Why CUDA's driver gives no GPU: prints its words, or nothing if it gives one.

Run as a script, standard library only: a driver may crash whoever asks it.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        sys.exit(print(problem))
    count = ctypes.c_int(0)
    for name, code in (
        ("cuInit", driver.cuInit(0)),
        ("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count))),
    ):
        if code:
            sys.exit(print(f"{name} answers {code}: {_said(driver, code)}"))
    if not count.value:
        print("cuDeviceGetCount counts none")


def _said(driver: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    return "unknown error" if driver.cuGetErrorString(code, ctypes.byref(text)) else (text.value or b"").decode()


if __name__ == "__main__":
    main()
