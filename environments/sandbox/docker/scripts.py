"""What runs inside a container besides the agent's commands: its first process, and the shell around each command.

They use an image's own `/bin/sh` and a few of its programs (`NEEDED`), so any image that has those will do, GNU's or
busybox's. The shell around commands is a copy that root makes when the container starts, on a file system the agent
cannot write to, and that nobody may read: the kernel lets no process trace one that runs an unreadable file. So the
agent can kill the shell around its command, which is told from outside, but can neither change nor imitate it.

Invariants, when the shell around a command has come to its end: every process the agent's user had is dead and gone,
and /tmp, /dev/shm and /dev/mqueue are empty.
"""

from __future__ import annotations

from agentgym_rtmc.environments.sandbox.watch import Limit

NEEDED = ("sh", "cat", "chmod", "cp", "nice", "rm", "timeout")
FOLDER = "/.sandbox"
_SHELL, _NICE = f"{FOLDER}/sh", f"{FOLDER}/nice"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where our scripts look for programs: that of the commands may name folders of the agent's."""
ALWAYS_THERE = 4
"""Processes in a container while our shell is the only one of the agent's user: init, timeout, cat, and that shell."""
STARTED = b"\x01"
"""First byte on standard output: the shell runs, and begins with what it was asked for."""
WORD = "SANDBOX_WORD"
"""Environment variable of our shell, which the agent's command does not see: what it says when it has come to its end.
Nobody may read the memory of our shell, so what has said it is no other, and has not been starved half-way."""
READY = b"ready\n"
"""What the first process says when commands can come."""

MAIN = f"""
{_PATH}
for program in {" ".join(NEEDED)}; do
  command -v $program >/dev/null || {{ echo "it has no $program" >&2; exit 127; }}
done
cp /bin/sh {_SHELL} && chmod 0111 {_SHELL} && cp "$(command -v nice)" {_NICE} || exit
[ -z "$2" ] || chmod 1777 "$2" || exit
echo ready
exec timeout -s KILL "$1" cat >/dev/null 2>&1
"""
"""First process: lives until its input ends, which the sandbox's owner holds, and at most the seconds of `$1`. Lets
everybody write in `$2`, where that is given."""

# A process started by somebody who is being killed is killed as well, so one signal is enough. What is dying may be
# busy for a moment still. Folders that the agent closed to itself have to be opened before they can be removed.
_CLEAN = f"""
kill -9 -1
{_PATH}
i=0
while set -- /proc/[0-9]*; [ $# -gt {ALWAYS_THERE} ] && [ $i -lt 20000 ]; do i=$((i+1)); done
left() {{
  for f in /tmp/* /tmp/.[!.]* /tmp/..?* /dev/shm/* /dev/shm/.[!.]* /dev/shm/..?* /dev/mqueue/*; do
    if [ -e "$f" ] || [ -L "$f" ]; then return 0; fi
  done
  return 1
}}
if left; then
  rm -rf /tmp /dev/shm /dev/mqueue
  if left; then chmod -R u+rwX /tmp /dev/shm; rm -rf /tmp /dev/shm; fi
fi
"""
# Variables set before the command runs have names of their own: those of the image or the spec are the command's.
_BEGIN = rf"""
printf '\001'
sandbox_word=${WORD}
unset {WORD}
sandbox_place=$1
shift
sandbox_path=$PATH
{_PATH}
cd "$sandbox_place" || {{ chmod u+rwx "$sandbox_place" || mkdir -p "$sandbox_place"; cd "$sandbox_place"; }}
PATH=$sandbox_path
"""
# The shell's own descriptor 2 is closed and 9 is the command's: shells like to remark on how a command died.
_RUN = '(exec "$@") 2>&9 9>&-\nc=$?'

_FULL = """
set -- $(stat -f -c '%f %d' "$sandbox_place" 2>&-)
[ "${1:-9}" -lt 4 ] && end='\\002'
[ "${2:-9}" -lt 2 ] && end='\\003'
"""


def around(merged: bool, look_for_room: bool) -> str:
    """The shell that runs `$2 $3 …` in the folder `$1`, with both streams on standard output if `merged`.

    Its last words on standard output are the one in the variable `WORD` and one of `ENDED`; `look_for_room`: whether
    the folder's file system is full.
    """
    streams = "exec 9>&1 2>&-" if merged else "exec 9>&2 2>&-"
    full = _FULL if look_for_room else ""
    return f"{streams}{_BEGIN}{_RUN}{_CLEAN}end='\\001'\n{full}printf \"$sandbox_word$end\"\nexit $c"


ENDED: dict[bytes, Limit | None] = {b"\x01": None, b"\x02": "full-disk", b"\x03": "full-files"}
SWEEP = f"exec 2>&-\nprintf '\\001'{_CLEAN}printf \"${WORD}\\001\"\nexit 0"
"""Kills whatever the agent's user runs; its last words are as those of `around`."""

NOT_FOUND, CROSSED, CLOSED, FOLDER_THERE, NOT_PLAIN, NO_ROOM = 40, 41, 42, 43, 44, 45
"""How `READ` and `WRITE` end when they refuse."""

# Nothing of the agent's runs meanwhile, so what was looked at cannot be exchanged.
_DESCEND = f"""
{_PATH}
p=$1
while :; do
  case $p in
    */*) d=./${{p%%/*}}; p=${{p#*/}} ;;
    *) break ;;
  esac
  [ -L "$d" ] && exit {CROSSED}
  MAKE
  [ -d "$d" ] || exit {CROSSED}
  cd "$d" || exit {CLOSED}
done
p=./$p
"""
READ = f"""
{_DESCEND.replace("MAKE", f'[ -e "$d" ] || exit {NOT_FOUND}')}
[ -L "$p" ] && exit {CROSSED}
[ -e "$p" ] || exit {NOT_FOUND}
[ -f "$p" ] || exit {NOT_PLAIN}
[ -r "$p" ] || exit {CLOSED}
exec cat "$p"
"""
"""Writes the file `$1`, a path below the working directory, to standard output."""
WRITE = f"""
{_DESCEND.replace("MAKE", f'[ -e "$d" ] || mkdir -m 755 "$d" || exit {NO_ROOM}')}
[ -d "$p" ] && ! [ -L "$p" ] && exit {FOLDER_THERE}
[ -w . ] && [ -x . ] || exit {CLOSED}
t=./.$$.new
rm -f "$t"
cat > "$t" && [ "$(wc -c < "$t")" -eq "$3" ] && chmod "$2" "$t" && rm -f "$p" && mv "$t" "$p" && exit 0
rm -f "$t"
exit {NO_ROOM}
"""
"""Makes the file `$1` with mode `$2` of the `$3` bytes on standard input; a link at its place is replaced."""
PACK = f"{_PATH}\nexec tar -cf - ."
UNPACK = f"{_PATH}\nexport LC_ALL=C\nexec tar -xpf -"


def shell_words(script: str, *words: bytes) -> list[str]:
    """Words for the engine, low priority first, that run `script` with `words` as `$1 $2 …`, whatever bytes they hold.

    The engine takes text alone; a word that is none is spelt out for the shell.
    """
    texts = []
    for word in words:
        try:
            texts.append(word.decode())
        except UnicodeDecodeError:
            return [*_START, _spelt(words) + script, "sh"]
    return [*_START, script, "sh", *texts]


# When the agent's processes take all the time there is, those that are to kill them still get theirs.
_START = (_NICE, "-n", "19", _SHELL, "-c")
SWEEP_WORDS = [_SHELL, "-c", SWEEP, "sh"]


def _spelt(words: tuple[bytes, ...]) -> str:
    """Shell text that sets `$1 $2 …`."""
    lines, names = [], []
    for index, word in enumerate(words):
        escaped = "".join(f"\\{byte:03o}" for byte in word)
        # What a command prints loses its last newlines, hence the x.
        lines.append(f"w{index}=$(printf '{escaped}x')\nw{index}=${{w{index}%x}}\n")
        names.append(f'"$w{index}"')
    return "".join(lines) + f"set -- {' '.join(names)}\n"
