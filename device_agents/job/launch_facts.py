"""Facts about a process in a sandbox, tried out by the launcher where it is asked to probe: the matrix is made of it.

Run by `launch.py` (`runpy`), whose names it uses; standard library only.
"""

import ctypes
import itertools
import os
import signal
import sys

launch = sys.modules["__main__"]


def facts(plan: dict, abi: int) -> dict:  # type: ignore[type-arg]
    """Returns what is really so, tried out here: the probe matrix is made of it."""
    capabilities = ctypes.create_string_buffer(24)
    launch.libc.syscall(ctypes.c_long(launch.SYS["capget"]), launch.cap_header(), capabilities)
    bounding = [number for number in range(41) if launch.libc.prctl(launch.PR_CAPBSET_READ, number, 0, 0, 0) == 1]
    return {
        "uid": os.getuid(),
        "no_capabilities": not any(capabilities.raw) and (not bounding or plan["uid"] is None),
        "no_new_privileges": launch.libc.prctl(launch.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1,
        "own_processes": os.getppid() == 0,
        "no_network": _interfaces() <= {b"lo"},
        "empty_root": not os.path.exists(plan["hidden"]) and not os.path.exists("/etc/passwd"),
        "read_only": not _works(lambda: os.close(os.open("x", os.O_CREAT | os.O_WRONLY))),
        "writes_out": _works(lambda: os.close(os.open("out/x", os.O_CREAT | os.O_WRONLY))),
        "landlock": abi if abi and not _works(lambda: os.mkfifo("out/f")) else 0,
        "proc": os.path.exists("/proc/self/status"),
        "filter": _ends(plan["filter"], lambda: launch.libc.socket(launch.AF_UNIX, launch.SOCK_STREAM, 0))
        == signal.SIGSYS,
        "one_process": _ends(plan["filter"], os.fork) == signal.SIGSYS,
    }


def _socket() -> None:
    launch.libc.socket(launch.AF_UNIX, launch.SOCK_STREAM, 0)


def _interfaces() -> "set[bytes]":
    """Names of network interfaces, of `struct if_nameindex`: PyPy's `socket` does not list them."""
    launch.libc.if_nameindex.restype = ctypes.POINTER(ctypes.c_char_p * 2)
    return {
        interface[1]
        for interface in itertools.takewhile(lambda interface: interface[1] is not None, launch.libc.if_nameindex())
    }


def _works(act) -> bool:  # type: ignore[no-untyped-def]
    try:
        act()
    except OSError:
        return False
    return True


def _ends(text: "str | None", act) -> int:  # type: ignore[no-untyped-def]
    """The signal that ends a process which does `act` under the filter; 0: none."""
    if text is None:
        return 0
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] & 0x7F
    try:
        launch.install(text)
        act()
    finally:
        os._exit(0)
