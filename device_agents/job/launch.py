"""The last process before the binary: takes away what the job must not have, then becomes the binary.

Run as a script by `sandbox.py` (`python -I -S launch.py JSON`), in a new session, with the job's folder as its working
directory; standard library only and no import of ours, so that it starts in milliseconds. A process of its own because
code between fork and exec in a threaded parent may deadlock.

Level 1: dies with its parent, resource limits, no new privileges, another user when the agent is root.
Level 2: namespaces: no network, own process tree (all of it dies with its first process), own IPC and host name.
Level 3: whole file system read-only but the working directory, the agent's state folder covered by an empty one.

It says one line, a `launch` event with the monotonic clock, or an `error` event and exit code 5 (or both, when the
binary cannot be started), on a descriptor that the binary does not get: only we can say that the device failed.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY = 1

libc = ctypes.CDLL(None, use_errno=True)
say_to = 1


def main() -> None:
    plan = json.loads(sys.argv[1])
    global say_to
    say_to = plan["say"]
    if say_to > 2:
        os.set_inheritable(say_to, False)
    try:
        _die_with_parent(plan["parent"])
        if plan["cgroup"]:
            with open(os.path.join(plan["cgroup"], "cgroup.procs"), "w") as file:
                file.write("0")
        if plan["level"] >= 2:
            _enter_namespaces(plan)
        _drop(plan)
    except OSError as error:
        _fail("launch.sandbox", f"cannot set up isolation level {plan['level']}: {error}")
    _become(plan["argv"])


def _enter_namespaces(plan: dict) -> None:  # type: ignore[type-arg]
    flags = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID
    flags |= CLONE_NEWNS if plan["level"] >= 3 else 0
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", libc.unshare(flags | (CLONE_NEWUSER if uid else 0)))
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    if plan["level"] >= 3:
        _freeze_file_system(plan["hide"])
    child = os.fork()
    if child:
        _wait_like(child)
    _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if plan["level"] >= 3:
        # Best effort: some containers do not let /proc be mounted again; then the old one stays, read-only.
        libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def _freeze_file_system(hide: "str | None") -> None:
    here = os.getcwd().encode()
    _call("mount private", libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _call("bind scratch", libc.mount(here, here, None, MS_BIND, None))
    os.chdir(here)
    _set_mount(b"/", AT_RECURSIVE, MOUNT_ATTR_RDONLY, 0)
    _set_mount(b".", 0, 0, MOUNT_ATTR_RDONLY)
    if hide:
        flags, options = MS_NOSUID | MS_NODEV, b"size=64k,mode=755"
        _call("hide state", libc.mount(b"tmpfs", hide.encode(), b"tmpfs", flags, options))
        # The working directory is still `.`, and comes back under its own name.
        os.makedirs(here, exist_ok=True)
        _call("show scratch", libc.mount(b".", here, None, MS_BIND, None))
        _call("hide state", libc.mount(b"none", hide.encode(), None, MS_REMOUNT | MS_RDONLY | flags, None))
        os.chdir(here)


def _set_mount(path: bytes, flags: int, to_set: int, to_clear: int) -> None:
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", to_set, to_clear, 0, 0), 32)
    arguments = ctypes.c_long(AT_FDCWD), path, ctypes.c_long(flags), attributes, ctypes.c_size_t(32)
    _call("mount_setattr", libc.syscall(ctypes.c_long(SYS_MOUNT_SETATTR), *arguments))


def _wait_like(child: int) -> None:
    """Wait for the child and end as it ended. Signals to the group are the child's business."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
    os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(128 + os.WTERMSIG(status))


def _drop(plan: dict) -> None:  # type: ignore[type-arg]
    for name, value in plan["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    if plan["uid"] is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(plan["uid"])
        os.setuid(plan["uid"])
    _call("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    # Changing the user clears it, so once more; the parent was checked before.
    _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _become(argv: "list[str]") -> None:
    _say({"event": "launch", "monotonic_s": time.monotonic()})
    if not argv:
        return
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "TMPDIR": "."}
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        _fail("launch.exec", f"cannot start {argv[0]}: {error.strerror}")


def _die_with_parent(parent: int) -> None:
    _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(5)


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _fail(code: str, message: str) -> None:
    _say({"event": "error", "cause": "internal", "code": code, "message": message})
    os._exit(5)


def _say(event: dict) -> None:  # type: ignore[type-arg]
    os.write(say_to, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
