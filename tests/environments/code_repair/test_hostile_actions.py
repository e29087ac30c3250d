"""Actions that try to hurt the host, hang the environment or break its answers. None may raise or cost anything."""

import json
import os
import time
from pathlib import Path

import pytest

from agentgym_rtmc.environments.checks import MALFORMED
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv

COMMANDS = [
    "rm -rf / --no-preserve-root",
    "rm -rf . .git .* *",
    "kill -9 -1",
    "kill -9 $PPID; kill -9 1",
    ":(){ :|:& };:",
    "yes",
    "cat /dev/zero",
    "cat /dev/urandom | head -c 300000",
    "printf '\\033[2J\\033]0;title\\007'",
    "printf 'a\\000b'",
    "head -c 100000000 /dev/zero > big",
    "dd if=/dev/zero of=/dev/shm/big bs=1M count=2000",
    "for i in $(seq 1 2000); do touch f$i; done",
    "while mkdir d && cd d; do :; done",
    "ln -s / root; ln -s loop loop; cat root/etc/shadow loop",
    "chmod 000 m.py t.py .git .",
    "rm m.py; mkfifo m.py; cat m.py",
    "sleep 1000",
    "sleep 1000 & sleep 1000 & disown; exit",
    "(setsid nohup sleep 1000 >/dev/null 2>&1 &)",
    "exec >&- 2>&-; echo lost",
    "exec 0<&- 1<>/dev/tty; tty; stty -a",
    "trap '' TERM INT HUP; while :; do :; done",
    "python -c 'import os\nwhile True: os.fork()'",
    "python -c 'x = []\nwhile True: x.append(bytearray(1 << 24))'",
    "python -c 'import socket; socket.create_connection((\"127.0.0.1\", 22), 2)'",
    "python -c 'import ctypes; ctypes.string_at(0)'",
    "python -c 'import os; os.kill(os.getpid(), 11)'",
    "git config core.fsmonitor 'touch /tmp/pwned'; git status; git config core.pager 'rm -rf'; git log",
    "printf '#!/bin/sh\\ntouch pwned\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*; git commit -qam x",
    "rm -rf .git; git checkout -q . && ls",
    "echo garbage > .git/index; git status",
    "mount -t tmpfs none /mnt; umount /proc; chroot / id; unshare -r id",
    "su; sudo id; setpriv --reuid 0 id",
    "echo 1 > /proc/sysrq-trigger; echo 0 > /proc/self/oom_score_adj; ls /proc/1/root/home",
    "touch -- '-rf' '--help' '$(id)' '`id`' \"$(printf '\\377\\376')\" 'new\nline'; ls",
    "curl http://169.254.169.254/; wget -qO- http://127.0.0.1; getent hosts localhost",
    "crontab -l; at now; systemctl status; dbus-send",
    "ulimit -v unlimited; ulimit -n 1000000; ulimit -u unlimited; ulimit -a | wc -l",
    "cat <<EOF\nunfinished",
    "echo 'unbalanced",
    "$(printf 'a%.0s' $(seq 1 20000))",
    "submit; ls",
    "submit\nsubmit",
    "exit 256; exit -1; exit x",
    "python -m http.server 8000 & sleep 0.1; python -c 'print(1)'",
]


def test_there_are_more_than_thirty():
    assert len(set(COMMANDS)) >= 40


@pytest.fixture(scope="module")
def hostile_env(sandboxed):
    env = CodeRepairEnv(command_seconds=1.5, memo=False, max_turns=1000)
    yield env
    env.close()


def processes_of_ours():
    """Ids of the processes below this one."""
    found, todo = set(), [os.getpid()]
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo += below
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_hostile_commands_become_observations(hostile_env, make_task, sh, tmp_path, command):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    env = hostile_env
    env.reset(seed=0, options={"task": make_task()})
    before = processes_of_ours()
    started = time.monotonic()
    observation, reward, terminated, truncated, info = env.step(sh(command))
    assert time.monotonic() - started < 30
    assert isinstance(observation, str) and observation and len(observation) < 1500
    assert (reward, terminated, truncated) == (0.0, False, False)
    json.dumps(info, allow_nan=False).encode()
    assert canary.read_text() == "alive"
    assert not processes_of_ours() - before
    # The episode goes on, and the next one starts clean.
    assert isinstance(env.step(sh("ls; git checkout -q . ; cat m.py"))[0], str)
    env.reset(seed=0, options={"task": make_task()})
    assert env.step(sh("cat m.py; git status --short; ls"))[0] == "def add(a, b):\n    return a - b\nm.py\nt.py"


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_malformed_actions_become_observations(hostile_env, make_task, number):
    hostile_env.reset(seed=0, options={"task": make_task()})
    observation, reward, terminated, truncated, info = hostile_env.step(MALFORMED[number])
    assert isinstance(observation, str) and observation and len(observation) < 1500
    assert (reward, terminated, truncated) == (0.0, False, False)
    json.dumps(info, allow_nan=False).encode()
