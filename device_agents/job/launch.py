"""The last process before the binary: takes away what the job must not have, then becomes the binary.

Run as a script by `sandbox.py` (`python -I -S launch.py JSON`), in a new session, with the job's folder as its working
directory; standard library only and no import of ours, so that it starts in milliseconds. A process of its own because
code between fork and exec in a threaded parent may deadlock.

In this order: dies with its parent; joins the job's cgroups; namespaces and an empty root, with the job's folder
(read-only but `out/`), its own /proc, the CPUs' folder of /sys, what else the plan shows; resource limits; another
user; no capabilities; no new privileges; Landlock; the list of system calls. Each is there if the plan says so, and
`sandbox.py` has tried before that it works here (`plan["probe"]`: what was really found is said instead of a start).

Where the agent is to be told which forbidden call a binary makes, the list of system calls is made with a listener, and
that goes to the agent on the same way, as a descriptor; from then on nobody here could hear what it says.

It says one line, a `launch` event with the monotonic clock, or an `error` event and exit code 5 (or both, when the
binary cannot be started), on a descriptor that the binary does not get: only we can say that the device failed.
"""

import base64
import contextlib
import ctypes
import fcntl
import json
import os
import platform
import resource
import runpy
import signal
import stat
import struct
import sys
import time

UNNAMED_LIMITS = {"RLIMIT_MSGQUEUE": 12}  # the kernel's number, on every architecture here; PyPy lacks the name
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 23, 24, 28
PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 39, 47, 4
SECUREBITS = 0x01 | 0x02 | 0x20 | 0x40 | 0x80
"""Root has no powers by its number, none are kept over a change of user, none can be handed on; all of it locked."""
CAP_VERSION_3 = 0x20080522
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE, MS_RELATIME = 4096, 8192, 16384, 1 << 18, 1 << 21
ST_RELATIME, KEPT_FLAGS = 4096, 2 | 4 | 8 | 1024 | 2048
MNT_DETACH = 2
O_PATH = getattr(os, "O_PATH", 0o10000000)
"""Linux's value on all our architectures; PyPy does not name it."""
AT_EMPTY_PATH = 0x1000
SPEC_ALLOW, NEW_LISTENER = 4, 8
SOL_SOCKET, SCM_RIGHTS, AF_UNIX, SOCK_STREAM = 1, 1, 1, 1
MESSAGE, CONTROL = "PIPNPNixxxx", "Niiixxxx"
"""`struct msghdr`, and `struct cmsghdr` with one descriptor behind it."""
FD_OF_BINARY, FD_OF_AGENT = 300, 301
"""Above the limit of descriptors: the one that the filter lets be started, and the one that it lets a message be sent
to. Both are closed in the binary, and no job can have their numbers again."""
THIS_PROCESS = 0x7E57_0001
"""Stands in the filter for the number of the process, which is known only here."""
_NUMBERS = (125, 126, 155, 317, 322) if platform.machine() == "x86_64" else (90, 91, 41, 277, 281)
SYS = dict(zip(("capget", "capset", "pivot_root", "seccomp", "execveat"), _NUMBERS))
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_REG, TRUNCATE = 1, 2, 4, 8, 1 << 5, 1 << 8, 1 << 14
SHOWN_ALWAYS = ("/sys/devices/system/cpu",)
"""The folders where a binary reads how fast each core is."""
WORK, WORK_OPTIONS = "/tmp", b"mode=1777,size=512m"
"""The folder, in memory, where a driver keeps what it compiles while a job runs."""
IOCTL_DEVICE = 1 << 15

libc = ctypes.CDLL(None, use_errno=True)
say_to = 1


def main() -> None:
    plan = json.loads(sys.argv[1])
    global say_to
    say_to = plan["say"]
    if say_to > 2:
        os.set_inheritable(say_to, False)
    facts_module = runpy.run_path(plan["facts"]) if plan["probe"] else {}  # while its file is in view
    doing = "die with the agent"
    try:
        _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if os.getppid() != plan["parent"]:
            os._exit(5)
        doing = "join the job's cgroups"
        for path in plan["cgroups"]:
            with open(path, "w") as file:
                file.write("0")
        doing = "enter namespaces and an empty root"
        if plan["namespaces"]:
            _enter_namespaces(plan)
        doing = "give up privileges"
        _limit(plan["rlimits"])
        _drop(plan["uid"])
        doing = "restrict files (Landlock)"
        abi = _landlock(plan) if plan["landlock"] else 0
    except OSError as error:
        _fail("launch.sandbox", f"cannot {doing}: {error}")
    if plan["probe"] and plan["tells"]:
        _above_the_limit(say_to, FD_OF_AGENT)
        _install_and_tell(plan["filter"])
        libc.socket(AF_UNIX, SOCK_STREAM, 0)
    if plan["probe"]:
        _say({"event": "launch", "monotonic_s": time.monotonic(), "facts": facts_module["facts"](plan, abi)})
        os._exit(0)
    _become(plan)


def _enter_namespaces(plan: dict) -> None:  # type: ignore[type-arg]
    flags = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWNS
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", libc.unshare(flags | (CLONE_NEWUSER if uid else 0)))
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    first = os.fork()
    if not first:
        _stand_first()
    child = os.fork()
    if child:
        _wait_like(child, first)
    _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _empty_root(plan)


def _stand_first() -> None:
    """Process 1 of the job's: the kernel spares it signals of its own, so a binary there may not die of a crash."""
    _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _call("prctl", libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))  # nobody looks into it: it has the machine's files in view
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.closerange(0, 1024)
    while True:
        signal.pause()


def _empty_root(plan: dict) -> None:  # type: ignore[type-arg]
    """A file system of nothing but the job's folder, in place of all others."""
    _call("mount private", libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    here, job = os.getcwd(), os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # Covers the job's own folder, which is still open: every machine has this place, and nobody else sees it covered.
    _call("mount root", libc.mount(b"tmpfs", here.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755,size=1m"))
    _show(f"/proc/self/fd/{job}", f"{here}/job", MS_RDONLY)
    if os.path.isdir(f"{here}/job/out"):
        _show(f"/proc/self/fd/{job}/out", f"{here}/job/out", MS_NOEXEC)
    os.close(job)
    for path in (*SHOWN_ALWAYS, *plan["shown"]):
        _show_as_it_is(path, here + path)
    for path in plan["nodes"]:
        _show(path, here + path, 0, kept_out=MS_NOSUID)
    if plan["drives"]:
        os.makedirs(here + WORK)
        _call("mount work", libc.mount(b"tmpfs", (here + WORK).encode(), b"tmpfs", MS_NOSUID | MS_NODEV, WORK_OPTIONS))
    _own_proc(f"{here}/proc")
    os.chdir(here)
    if libc.syscall(ctypes.c_long(SYS["pivot_root"]), b".", b".") == 0:
        _call("leave the old root", libc.umount2(b".", MNT_DETACH))
    else:
        # The first root of a machine (an initial RAM disk) cannot be turned; it is covered, and there is no way down.
        _call("move root", libc.mount(b".", b"/", None, MS_MOVE, None))
        os.chroot(".")
    os.chdir("/")
    _call("freeze root", libc.mount(b"none", b"/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, None))
    os.chdir("/job")


def _show_as_it_is(path: str, at: str) -> None:
    if os.path.islink(path):
        os.makedirs(os.path.dirname(at), exist_ok=True)
        os.symlink(os.readlink(path), at)
    elif os.path.exists(path):
        _show(path, at, MS_RDONLY)


def _show(path: str, at: str, flags: int, kept_out: int = MS_NOSUID | MS_NODEV) -> None:
    """Binds `path` at the new place `at`, without devices (but where one is shown) and set-user-id bits."""
    is_folder = os.path.isdir(path)
    os.makedirs(at if is_folder else os.path.dirname(at), exist_ok=True)
    if not is_folder:
        os.close(os.open(at, os.O_CREAT | os.O_WRONLY, 0o644))
    if libc.mount(path.encode(), at.encode(), None, MS_BIND, None) != 0:
        # What is mounted below may not be uncovered by a user who is not root.
        _call(f"show {path}", libc.mount(path.encode(), at.encode(), None, MS_BIND | MS_REC, None))
    now = os.statvfs(at).f_flag
    inherited = (now & KEPT_FLAGS) | (MS_RELATIME if now & ST_RELATIME else 0)
    how = MS_REMOUNT | MS_BIND | kept_out | flags | inherited
    _call(f"restrict {path}", libc.mount(b"none", at.encode(), None, how, None))


def _own_proc(at: str) -> None:
    """/proc of the new process tree, without the system's knobs; none where a container forbids it."""
    os.makedirs(at)
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    if libc.mount(b"proc", at.encode(), b"proc", flags, b"subset=pid") != 0:
        libc.mount(b"proc", at.encode(), b"proc", flags | MS_RDONLY, None)


def _wait_like(child: int, first: int) -> None:
    """Waits for the child and ends as it ended. Signals to the group are the child's business."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    status = os.waitpid(child, 0)[1]
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
    os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(128 + os.WTERMSIG(status))


def _limit(rlimits: "dict[str, int]") -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")  # when the machine runs out of memory, it shall not be the agent that goes
    rlimits.pop("RLIMIT_NOFILE", None)  # last: the binary's own descriptor lies above
    for name, value in rlimits.items():
        number = getattr(resource, name) if hasattr(resource, name) else UNNAMED_LIMITS[name]
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


def _drop(uid: "int | None") -> None:
    """Capabilities cannot be had again after this: not by a file, not by a namespace, not by being root."""
    may = not libc.prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0)
    for number in range(64) if may else ():
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    if uid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    nothing = ctypes.create_string_buffer(24)
    _call("capset", libc.syscall(ctypes.c_long(SYS["capset"]), cap_header(), nothing))
    _call("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))  # changing the user has cleared it


def cap_header() -> "ctypes.Array[ctypes.c_char]":
    return ctypes.create_string_buffer(struct.pack("Ii", CAP_VERSION_3, 0), 8)


def _landlock(plan: dict) -> int:  # type: ignore[type-arg]
    """Files by path, TCP, abstract sockets and signals to others, as far as the kernel's version of it knows them."""
    abi = libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if abi < 1:
        raise OSError(ctypes.get_errno(), "the kernel has no Landlock")
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    attributes = struct.pack("QQQ", files, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _call("landlock", libc.syscall(ctypes.c_long(LANDLOCK_CREATE), attributes, ctypes.c_size_t(size), 0))
    read = EXECUTE | READ_FILE | READ_DIR
    _allow(rules, ".", read)
    _allow(rules, "out", READ_FILE | READ_DIR | ((WRITE_FILE | REMOVE_FILE | MAKE_REG | TRUNCATE) & files))
    _allow(rules, "/proc" if plan["namespaces"] else "/proc/self", READ_FILE | READ_DIR)
    for path in (*SHOWN_ALWAYS, *plan["shown"]):
        _allow(rules, path, read)
    for path in plan["nodes"]:
        _allow(rules, path, (READ_FILE | WRITE_FILE | IOCTL_DEVICE) & files)
    if plan["drives"]:
        _allow(rules, WORK if plan["namespaces"] else "out", files)
    _call("landlock", libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT), rules, 0))
    os.close(rules)
    return int(abi)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        access &= EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEVICE
    rule = struct.pack("<Qi", access, descriptor)
    _call(f"landlock {path}", libc.syscall(ctypes.c_long(LANDLOCK_ADD), rules, 1, rule, 0))
    os.close(descriptor)


def install(text: str, flags: int = SPEC_ALLOW) -> int:
    """The list of system calls, of this thread, which is the only one. Returns the listener, if flags ask for one."""
    program = base64.b64decode(text).replace(struct.pack("<I", THIS_PROCESS), struct.pack("<I", os.getpid()))
    code = ctypes.create_string_buffer(program, len(program))
    frame = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    # Without the first flag, kernels before 5.16 turn a mitigation on that slows loads and stores; there is nobody else
    # in the process whose secrets it would keep.
    listener = libc.syscall(ctypes.c_long(SYS["seccomp"]), ctypes.c_ulong(1), ctypes.c_ulong(flags), frame)
    if listener < 0 and not flags & NEW_LISTENER:
        _call("seccomp", libc.prctl(PR_SET_SECCOMP, 2, frame, 0, 0))
        return -1
    return _call("seccomp with a listener", listener)


def _install_and_tell(text: str) -> None:
    """Installs the filter as above, with a listener, which goes to the agent. A forbidden call in between would wait
    for ever.
    """
    data = ctypes.create_string_buffer(b"\n", 1)
    parts = ctypes.create_string_buffer(struct.pack("PN", ctypes.addressof(data), len(data)))
    control = ctypes.create_string_buffer(struct.calcsize(CONTROL))
    message = struct.pack(MESSAGE, 0, 0, ctypes.addressof(parts), 1, ctypes.addressof(control), len(control), 0)
    listener = install(text, SPEC_ALLOW | NEW_LISTENER)
    struct.pack_into(CONTROL, control, 0, struct.calcsize("Niii"), SOL_SOCKET, SCM_RIGHTS, listener)
    if libc.sendmsg(FD_OF_AGENT, message, 0) != len(data):
        raise OSError(ctypes.get_errno(), "hand the listener over")


OF_DRIVERS = ("RUSTICL_ENABLE", "CUDA_VISIBLE_DEVICES")
"""Variables that drivers take from the agent's environment: which devices they show; Mesa's OpenCL shows those that are
named.
"""


def _environment(plan: dict) -> "dict[str, str]":  # type: ignore[type-arg]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "TMPDIR": "."}
    if plan["drives"]:
        work = WORK if plan["namespaces"] else os.path.abspath("out")
        environment.update(
            {"HOME": work, "TMPDIR": work, "POCL_CACHE_DIR": f"{work}/pocl", "CUDA_CACHE_PATH": f"{work}/cuda"}
        )
        environment.update({name: os.environ[name] for name in OF_DRIVERS if name in os.environ})
    return environment


def _become(plan: dict) -> None:  # type: ignore[type-arg]
    argv, text, tells, environment = plan["argv"], plan["filter"], plan["tells"], _environment(plan)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        binary = _above_the_limit(os.open(argv[0], O_PATH | os.O_CLOEXEC), FD_OF_BINARY) if text else -1
        if tells:
            _above_the_limit(say_to, FD_OF_AGENT)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        _say({"event": "launch", "monotonic_s": time.monotonic()})
        if text is None:
            os.execvpe(argv[0], argv, environment)
        words = [f"{name}={value}" for name, value in environment.items()]
        arguments = ctypes.c_long(binary), b"", _strings(argv), _strings(words), ctypes.c_long(AT_EMPTY_PATH)
        if tells:
            _install_and_tell(text)
        else:
            install(text)
        libc.syscall(ctypes.c_long(SYS["execveat"]), *arguments)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        _fail("launch.exec", f"cannot start {argv[0]}: {error.strerror}")


def _above_the_limit(descriptor: int, number: int) -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, number)


def _strings(words: "list[str]") -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(words) + 1))(*(os.fsencode(word) for word in words), None)


def _call(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _fail(code: str, message: str) -> None:
    _say({"event": "error", "cause": "internal", "code": code, "message": message})
    os._exit(5)


def _say(event: dict) -> None:  # type: ignore[type-arg]
    os.write(say_to, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
