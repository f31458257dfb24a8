"""The kernel's limits for a child of the service: its system calls are filtered, and it has no powers of root.

A compile runs Python, TVM and linkers, which start processes and map code, so the list says what is refused: what
reaches other processes without opening a file (sockets, limits, priorities); what Landlock leaves alone (modes, owners,
times, attributes); what outlives the child (a process that leaves its group, shared memory); and the parts of the
kernel that were most often the way into it. A refused call fails with EPERM and is not made; one that is newer than our
table is answered as by a kernel without it; a process that calls by another architecture's numbers is killed.

Boards allow by list instead: a job there is one binary (`device_agents/job/seccomp.py`).
"""

from __future__ import annotations

import ctypes
import struct

from device_agents.wire.filters import ALLOW, ENOSYS, EPERM, ERRNO, NAMESPACE_FLAGS, Rule, Test, assemble

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 28, 47, 4
SECUREBITS = 0x01 | 0x02 | 0x20 | 0x40 | 0x80
"""Root has no powers by its number, none are kept over a change of user, none can be handed on; all of it locked."""
CAP_VERSION_3 = 0x20080522
HIGHEST_CAPABILITY = 63

REFUSED = """
    socket socketpair connect bind listen accept accept4 sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg
    io_uring_setup io_uring_enter io_uring_register

    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat file_setattr utime utimes utimensat futimesat
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat

    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd
    migrate_pages move_pages

    sched_setscheduler sched_setparam sched_setattr setpriority ioprio_set

    setsid setpgid shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
    add_key request_key keyctl

    bpf perf_event_open userfaultfd fanotify_init lookup_dcookie open_by_handle_at name_to_handle_at
    personality modify_ldt vhangup syslog acct quotactl quotactl_fd uselib

    unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
    mount_setattr swapon swapoff
    setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups
    init_module finit_module delete_module kexec_load kexec_file_load reboot iopl ioperm
    settimeofday adjtimex clock_settime clock_adjtime sethostname setdomainname
"""
"""Sockets, and io_uring, which would make them unseen; modes, owners, times and attributes; other processes; scheduling
classes and priorities; what outlives a process; ways into the kernel; spaces, users and the machine."""
OF_A_PROCESS = ("prlimit64", "sched_setaffinity")
"""Their first argument names a process: 0 is whoever calls, and nobody else may be named."""
SET_ATTRIBUTES = (0x40086602, 0x401C5820)
"""`FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`: a file's attributes, by a descriptor that may only read."""
_REFUSE = ERRNO | EPERM


def rules() -> list[Rule]:
    """Returns the list of a child; what it does not name is allowed."""
    first, *others = SET_ATTRIBUTES
    return [
        *(Rule(name, action=_REFUSE) for name in REFUSED.split()),
        *(Rule(name, (Test(0, 0xFFFFFFFF, 0),), otherwise=_REFUSE) for name in OF_A_PROCESS),
        Rule("ioctl", (Test(1, 0xFFFFFFFF, first, also=tuple(others)),), action=_REFUSE, otherwise=ALLOW),
        Rule("clone", (Test(0, NAMESPACE_FLAGS, 0),), otherwise=_REFUSE),
        Rule("clone3", action=ERRNO | ENOSYS),  # its flags lie in memory, unseen; C libraries then take clone
    ]


def child_program(machine: str = "") -> bytes | None:
    """Returns the filter of a child, for this machine or another; None where we have no table of its calls."""
    return assemble(rules(), machine, unnamed=ALLOW, newer=ERRNO | ENOSYS)


def filter_calls(libc: ctypes.CDLL) -> bool:
    """Filters the calls of this thread and of what it starts, for good. False where the kernel or the list cannot.

    Needs no-new-privileges.
    """
    program = child_program()
    if program is None:
        return False
    code = ctypes.create_string_buffer(program, len(program))
    frame = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    return bool(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, frame, 0, 0) == 0)


def drop_privileges(libc: ctypes.CDLL) -> bool:
    """Gives up all capabilities of this thread, of root too, for good. Returns whether none are there any more.

    Needs no-new-privileges, by which a started program cannot have them either.
    """
    if libc.prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0) == 0:
        for number in range(HIGHEST_CAPABILITY + 1):
            if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                break
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.capset(_capability_header(), ctypes.create_string_buffer(24))
    return not has_capabilities(libc)


def has_capabilities(libc: ctypes.CDLL) -> bool:
    """Returns whether this thread has any capability; True where the kernel does not say."""
    sets = ctypes.create_string_buffer(24)
    return bool(libc.capget(_capability_header(), sets) != 0 or any(sets.raw))


def _capability_header() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("Ii", CAP_VERSION_3, 0), 8)
