"""A small system-call filter that takes away what an agent's commands never need and attackers like.

It refuses (EPERM) new user namespaces, which would give a command capabilities again, and with them mounts of memory
file systems without a limit; also kernel keyrings, BPF, performance events, user-fault handling, io_uring, and System V
shared memory and queues, whose bytes belong to no process. `clone3` answers ENOSYS, since a filter cannot look into its
arguments; C libraries then fall back to `clone`, which it can.

Everything else passes: the filter narrows what namespaces and dropped capabilities leave, it is not the wall itself.
Numbers and structures: linux/seccomp.h, linux/filter.h, linux/audit.h and the architectures' system-call tables.
"""

from __future__ import annotations

import errno
import os
import struct

_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
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
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT = 0x40000000


def _statement(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def filter_program(machine: str = os.uname().machine) -> bytes | None:
    """The filter as an array of `struct sock_filter`, as `bwrap --seccomp` reads it; None for other architectures."""
    if machine not in _MACHINES:
        return None
    column, architecture = _MACHINES[machine]
    refuse = _statement(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_JUMP_EQUAL, architecture, 1, 0),
        _statement(_RETURN, _KILL),  # 32-bit calls have other numbers and would slip through
        _statement(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_jump(_JUMP_AT_LEAST, _X32_BIT, 0, 1), refuse]
    for numbers in _REFUSED.values():
        program += [_jump(_JUMP_EQUAL, numbers[column], 0, 1), refuse]
    program += [
        _jump(_JUMP_EQUAL, _CLONE3[column], 0, 1),
        _statement(_RETURN, _ERRNO | errno.ENOSYS),
        _jump(_JUMP_EQUAL, _CLONE[column], 0, 3),
        _statement(_LOAD, _FIRST_ARGUMENT),
        _jump(_JUMP_SET, _CLONE_NEWUSER, 0, 1),
        refuse,
        _statement(_RETURN, _ALLOW),
    ]
    return b"".join(program)
