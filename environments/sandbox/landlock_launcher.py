"""Run one command under Landlock and seccomp, stay above it, and leave nothing of it: a program of its own.

Run as `python -I -S landlock_launcher CONFIG OWNER STATUS COMMAND...`. CONFIG is a file in `marshal`'s format
(`landlock.Landlock` writes it), OWNER the number of the process that must live, STATUS a descriptor to which "started"
is written when the command is about to run. It starts with every command, so it imports little, and that in C.

Invariants:
- The command and all it starts are descendants of this process, which takes in every orphan; when the command ends,
  this process is told to (SIGTERM), or its owner dies, all of them are killed before it ends.
- This process itself runs nothing of the command's; it only changes modes and times of files for it, where they lie in
  the folders that the command may write to.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import ctypes
import fcntl
import marshal
import os
import resource
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_libc = ctypes.CDLL(None, use_errno=True)
_SET_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SUBREAPER = 1, 38, 36
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _SEND, _STILL_VALID = 0xC0502100, 0xC0182101, 0x40082102
_NOTIFICATION = struct.Struct("<QIIiIQ6Q")
_ANSWER = struct.Struct("<QqiI")
_AT_CWD, _NO_FOLLOW, _EMPTY_PATH = -100, 0x100, 0x1000
_NOW, _OMIT = (1 << 30) - 1, (1 << 30) - 2


def system_call(number: int, *arguments: "Any") -> int:
    """A system call by number. Raises OSError."""
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(result)


def prctl(option: int, value: int) -> None:
    """prctl(2). Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def restrict(file_rights: int, network_rights: int, scopes: int, rules: "list[tuple[str, int]]") -> None:
    """Refuse this process and all it starts, for good, the given rights but where `rules` allow some of them.

    A rule is for a file, or for a folder and all below it; one for a path that is not there is passed over.
    """
    attributes = struct.pack("<QQQ", file_rights, network_rights, scopes)
    ruleset = system_call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path, rights in rules:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        system_call(_ADD_RULE, ruleset, 1, struct.pack("<Qi", rights & file_rights, place), 0)
        os.close(place)
    system_call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def filter_calls(program: bytes) -> int:
    """Install a system-call filter; return the descriptor on which it asks."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    return system_call(_SECCOMP[os.uname().machine], _SET_FILTER, _NEW_LISTENER, header)


def run(config: "dict[str, Any]", command: "list[bytes]", channel: _socket.socket) -> "NoReturn":
    """Become the command. Anything that goes wrong before is the back end's failure."""
    os.setsid()
    prctl(_SET_DEATH_SIGNAL, _signal.SIGKILL)
    for name in (_signal.SIGTERM, _signal.SIGCHLD):
        _signal.signal(name, _signal.SIG_DFL)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - pathlib takes long to import
            file.write("900")  # if memory runs out, the command goes before its supervisor
    except OSError:
        pass
    for limit, value in config["limits"].items():
        resource.setrlimit(limit, (value, value))
    prctl(_NO_NEW_PRIVILEGES, 1)
    restrict(config["file_rights"], config["network_rights"], config["scopes"], config["rules"])
    listener = filter_calls(config["filter"])
    channel.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", listener))])
    os.close(listener)
    channel.close()
    execute(command, config["environment"])


def execute(command: "list[bytes]", environment: "dict[str, str]") -> "NoReturn":
    """Become the command, or say why not. What `os` has for this would import more, which is out of reach now."""
    name = command[0]
    places = [name]
    if b"/" not in name:
        places = [folder + b"/" + name for folder in os.fsencode(environment["PATH"]).split(b":")]
    found = None
    for place in places:
        try:
            os.execve(place, command, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found = found or error
    if found is None:
        complain(name, "not found", 127)
    complain(name, str(found.strerror), 126)


def complain(command: bytes, why: str, code: int) -> "NoReturn":
    """Say why the command cannot be run, as a shell does."""
    os.write(2, command + b": " + why.encode() + b"\n")
    os._exit(code)


def children(pid: int) -> "list[int]":
    """Processes that a process has started and not yet forgotten."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123
                found += [int(word) for word in file.read().split()]
    except OSError:  # it has ended meanwhile
        pass
    return found


def descendants() -> "set[int]":
    """Everything below this process."""
    found: set[int] = set()
    queue = [os.getpid()]
    while queue:
        new = set(children(queue.pop())) - found
        found |= new
        queue += new
    return found


def send(descriptor: int, signal: int) -> None:
    """Signal a process, if it is still there."""
    try:  # noqa: SIM105 - contextlib takes long to import
        _signal.pidfd_send_signal(descriptor, signal)
    except ProcessLookupError:
        pass


def kill_all() -> None:
    """Kill everything below this process, and return when it is gone."""
    while True:
        stopped = stop_all()
        alive = descendants()
        for pid, descriptor in stopped.items():
            if pid in alive:
                send(descriptor, _signal.SIGKILL)
            os.close(descriptor)
        try:
            while True:  # orphans become our children, so this ends with the last of them
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    if descendants() - set(stopped):  # born in the last moment
                        break
                    time.sleep(0.001)
        except ChildProcessError:
            return


def stop_all() -> "dict[int, int]":
    """Stop everything below this process until nothing new is found, so that nothing is born any more.

    Returns process number to a descriptor that is sure to mean that process.
    """
    stopped: dict[int, int] = {}
    while new := descendants() - set(stopped):
        for pid in new:
            try:  # noqa: SIM105
                stopped[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                pass
        for pid in new & descendants() & set(stopped):  # the others ended before, and may be anybody now
            send(stopped[pid], _signal.SIGSTOP)
    return stopped


class Helper:
    """Changes modes and times of files for the command, if they lie where it may write."""

    def __init__(self, listener: int, calls: "dict[str, int]", folders: "list[str]") -> None:
        self._listener = listener
        self._names = {number: name for name, number in calls.items()}
        self._folders = folders

    def serve(self) -> None:
        """Answer one question."""
        question = bytearray(_NOTIFICATION.size)
        error = 0
        try:
            fcntl.ioctl(self._listener, _RECEIVE, question)
            number, pid, _, call, _, _, *arguments = _NOTIFICATION.unpack(question)
            try:
                self._do(self._names[call], number, pid, arguments)
            except OSError as problem:
                error = problem.errno or 1
            except (ValueError, KeyError, OverflowError):
                error = 22  # EINVAL
            fcntl.ioctl(self._listener, _SEND, bytearray(_ANSWER.pack(number, 0, -error, 0)))
        except OSError:  # whoever asked is gone
            return

    def _do(self, name: str, number: int, pid: int, arguments: "list[int]") -> None:
        if name == "chmod":
            arguments = [_AT_CWD, *arguments]
        folder, path, value = _signed(arguments[0]), arguments[1], arguments[2]
        flags = _signed(arguments[3]) if name in ("fchmodat2", "utimensat") else 0
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.pread(memory, 4096, path).partition(b"\0")[0]
            times = os.pread(memory, 32, value) if name == "utimensat" and value else b""
        finally:
            os.close(memory)
        opened: list[int] = []
        try:
            place = self._open(pid, folder, text, flags, opened)
            fcntl.ioctl(self._listener, _STILL_VALID, struct.pack("<Q", number))  # it was really this one's memory
            if name == "utimensat":
                os.utime(place, ns=_moments(times, os.stat(place)))  # noqa: PTH116
            else:
                os.chmod(place, value & 0o1777)  # noqa: PTH101
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _open(self, pid: int, folder: int, path: bytes, flags: int, opened: "list[int]") -> str:
        """Open what a path of the command means; return a path that means it for good. Raises PermissionError."""
        kind = os.O_PATH | os.O_CLOEXEC
        if not path and not flags & _EMPTY_PATH:
            raise FileNotFoundError(2, "an empty path")
        opened.append(os.open(f"/proc/{pid}/cwd" if folder == _AT_CWD else f"/proc/{pid}/fd/{folder}", kind))
        if path:
            no_follow = os.O_NOFOLLOW if flags & _NO_FOLLOW else 0
            opened.append(os.open(path, kind | no_follow, dir_fd=opened[0]))
        place = f"/proc/self/fd/{opened[-1]}"
        real = os.readlink(place)  # noqa: PTH115
        if not any(real == allowed or real.startswith(f"{allowed}/") for allowed in self._folders):
            raise PermissionError(1, "outside the workspace")
        return place


def _signed(value: int) -> int:
    """A C int out of a register."""
    return ctypes.c_int(value & 0xFFFFFFFF).value


def _moments(times: bytes, status: os.stat_result) -> "tuple[int, int]":
    """Access and modification time in nanoseconds, out of two `struct timespec`."""
    fields = struct.unpack("<4q", times or struct.pack("<4q", 0, _NOW, 0, _NOW))
    now = time.time_ns()
    moments = []
    for seconds, nano, old in ((*fields[:2], status.st_atime_ns), (*fields[2:], status.st_mtime_ns)):
        moments.append(now if nano == _NOW else old if nano == _OMIT else seconds * 10**9 + nano)
    return moments[0], moments[1]


def supervise(child: int, helper: "Helper | None", listener: int, wake: int) -> int:
    """Serve the command until it ends or this process is told to; return its exit code."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    if helper is not None:
        poll.register(listener, select.POLLIN)
    while True:
        for descriptor, event in poll.poll():
            if descriptor == wake:
                os.read(wake, 4096)
            elif helper is not None and event & select.POLLIN:
                helper.serve()
            else:
                poll.unregister(descriptor)
        if _told_to_end:
            return 137
        pid = 1
        while pid:  # orphans that have ended, too
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


_told_to_end = False


def _end(_number: int, _frame: object) -> None:
    global _told_to_end
    _told_to_end = True


def main() -> None:
    """See the module."""
    command = [os.fsencode(word) for word in sys.argv[4:]]
    owner, status = int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(status, False)
    with open(sys.argv[1], "rb") as file:  # noqa: PTH123
        config = marshal.load(file)
    if config["become"] is not None:
        os.setgroups([])
        os.setresgid(*[config["become"]] * 3)
        os.setresuid(*[config["become"]] * 3)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # `stop_all` opens every process
    wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGTERM, _end)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    prctl(_SET_DEATH_SIGNAL, _signal.SIGTERM)
    prctl(_SUBREAPER, 1)
    if os.getppid() != owner:
        return
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        ours.close()
        run(config, command, theirs)
    theirs.close()
    try:
        _, received, _, _ = ours.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
        ours.close()
        helper, listener = None, -1
        for _, _, data in received:
            (listener,) = struct.unpack("i", data)
            helper = Helper(listener, config["calls"], config["writable"])
            os.write(status, b"started")
        code = supervise(child, helper, listener, wake)
    finally:
        kill_all()
    os._exit(code)


if __name__ == "__main__":
    main()
