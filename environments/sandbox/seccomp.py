"""A small system-call filter that takes away what an agent's commands never need and attackers like.

It refuses (EPERM) new user namespaces, which would give a command capabilities again, and with them mounts of memory
file systems without a limit; also kernel keyrings, BPF, performance events, user-fault handling, io_uring, System V
shared memory, queues and semaphores, whose bytes belong to no process, and secret memory, which no table shows; and
sockets of other families than local ones, the internet's and netlink: network namespaces do not hold them all (a
virtual machine's vsock leads to the machine that it runs on).
`clone3` answers ENOSYS, since a filter cannot look into its arguments; C libraries then fall back to `clone`, which it
can. `fallocate` answers that the file system does not know it: in one call it takes more disk than any watchdog can
look after, and C libraries write instead. Where nothing counts memory but the watchdog, `memfd_create` answers ENOSYS:
memory files can be hidden from it, by sending them through a socket and by forbidding to look at a process.

Everything else passes: the filter narrows what namespaces and dropped capabilities leave, it is not the wall itself.
Numbers and structures: linux/seccomp.h, linux/filter.h, linux/audit.h and the architectures' system-call tables.
"""

from __future__ import annotations

import errno
import os
import struct

_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
_ALLOW, _ERRNO, _NOTIFY, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets into struct seccomp_data (little-endian machines)
_CLONE_NEWUSER = 0x10000000

# name: (x86_64, aarch64)
_REFUSED = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "memfd_secret": (447, 447),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_ALLOCATE, _MEMORY_FILE = (285, 47), (319, 279)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT = 0x40000000


# What reaches other processes, other people's files or the kernel's log where no namespace is in the way.
_REFUSED_ALONE = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "ioprio_set": (251, 30),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "fspick": (433, 433),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "removexattrat": (466, 466),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "file_setattr": (469, 469),
}
_UNKNOWN = 470
"""First system call that did not exist when this was written."""
# Harmless for the caller itself, which these name by 0.
_OWN_ONLY = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
_SET_PRIORITY = (141, 140)
_SOCKET, _SOCKET_PAIR = (41, 198), (53, 199)
_FAMILIES = (1, 2, 10, 16)  # local, and those below
_NETWORK_FAMILIES = (2, 10, 16)  # IPv4, IPv6, and netlink, by which programs ask for addresses
_CONNECTED_TYPES = (1, 5)  # stream and sequenced packets: a pair of these cannot be pointed at anything else
CHMOD, FCHMODAT, FCHMODAT2, UTIMENSAT = (90, None), (268, 53), (452, 452), (280, 88)
"""Numbers of the calls that `strict_program` leaves to a supervisor."""


def _statement(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _argument(index: int, high: bool = False) -> bytes:
    """Load half of an argument."""
    return _statement(_LOAD, _FIRST_ARGUMENT + 8 * index + 4 * high)


_PERMIT = _statement(_RETURN, _ALLOW)
_REFUSE = _statement(_RETURN, _ERRNO | errno.EPERM)
_ASK = _statement(_RETURN, _NOTIFY)


def column(machine: str = os.uname().machine) -> int | None:
    """Place of a machine's number in the tables; None where there is none."""
    return _MACHINES[machine][0] if machine in _MACHINES else None


def filter_program(memory_files: bool, machine: str = os.uname().machine) -> bytes | None:
    """The filter as an array of `struct sock_filter`, as `bwrap --seccomp` reads it; None for other architectures.

    `memory_files`: whether a command may make them.
    """
    if machine not in _MACHINES:
        return None
    sockets = _if_call(_SOCKET[_MACHINES[machine][0]], _one_of(0, _FAMILIES))
    return b"".join(_start(machine) + sockets + _for_all(memory_files, machine) + [_PERMIT])


def strict_program(network: bool, memory_files: bool, machine: str = os.uname().machine) -> bytes | None:
    """The filter for commands that have no namespaces of their own; None for other architectures.

    Beyond `filter_program` it refuses sockets (but pairs of them, and for `network` those of the internet), limits,
    priorities and affinities of other processes, tracing, System V and POSIX queues, watches on files, and changes of
    owners and extended attributes by path. Changes of modes and times by path are left to a supervisor
    (SECCOMP_RET_USER_NOTIF), which can see what file is meant. System calls that it does not know do not exist.
    """
    if machine not in _MACHINES:
        return None
    where = _MACHINES[machine][0]
    program = _start(machine)
    program += [_jump(_JUMP_AT_LEAST, _UNKNOWN, 0, 1), _statement(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in _REFUSED_ALONE.values():
        program += _if_call(numbers[where], [_REFUSE])
    for numbers in _OWN_ONLY.values():
        program += _if_call(numbers[where], [_argument(0), _jump(_JUMP_EQUAL, 0, 0, 1), _PERMIT, _REFUSE])
    own_priority = [_argument(0), _jump(_JUMP_EQUAL, 0, 0, 3), _argument(1), _jump(_JUMP_EQUAL, 0, 0, 1), _PERMIT]
    program += _if_call(_SET_PRIORITY[where], [*own_priority, _REFUSE])
    program += _if_call(_SOCKET[where], _one_of(0, _NETWORK_FAMILIES) if network else [_REFUSE])
    program += _if_call(_SOCKET_PAIR[where], _one_of(1, _CONNECTED_TYPES, mask=0xF))
    for numbers in (CHMOD, FCHMODAT, FCHMODAT2):
        program += _if_call(numbers[where], [_ASK])
    # Without a path the descriptor is meant, which can only have been opened where the command may write.
    no_path = [_argument(1), _jump(_JUMP_EQUAL, 0, 0, 3), _argument(1, high=True), _jump(_JUMP_EQUAL, 0, 0, 1), _PERMIT]
    program += _if_call(UTIMENSAT[where], [*no_path, _ASK])
    return b"".join(program + _for_all(memory_files, machine) + [_PERMIT])


def _start(machine: str) -> list[bytes]:
    """Refuse other architectures' numbers, then have the number of the call at hand."""
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_JUMP_EQUAL, _MACHINES[machine][1], 1, 0),
        _statement(_RETURN, _KILL),  # 32-bit calls have other numbers and would slip through
        _statement(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_jump(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _REFUSE]
    return program


def _for_all(memory_files: bool, machine: str) -> list[bytes]:
    where = _MACHINES[machine][0]
    program = []
    for numbers in _REFUSED.values():
        program += _if_call(numbers[where], [_REFUSE])
    program += _if_call(_ALLOCATE[where], [_statement(_RETURN, _ERRNO | errno.EOPNOTSUPP)])
    if not memory_files:
        program += _if_call(_MEMORY_FILE[where], [_statement(_RETURN, _ERRNO | errno.ENOSYS)])
    program += _if_call(_CLONE3[where], [_statement(_RETURN, _ERRNO | errno.ENOSYS)])
    into_namespace = [_argument(0), _jump(_JUMP_SET, _CLONE_NEWUSER, 0, 1), _REFUSE, _PERMIT]
    return program + _if_call(_CLONE[where], into_namespace)


def _if_call(number: int | None, block: list[bytes]) -> list[bytes]:
    """Run `block`, which has to return, for one system call; others pass by with their number still at hand."""
    return [] if number is None else [_jump(_JUMP_EQUAL, number, 0, len(block)), *block]


def _one_of(argument: int, values: tuple[int, ...], mask: int | None = None) -> list[bytes]:
    """Permit only those values of an argument."""
    load = [_argument(argument)] + ([_statement(_AND, mask)] if mask is not None else [])
    tests = [_jump(_JUMP_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [*load, *tests, _REFUSE, _PERMIT]
