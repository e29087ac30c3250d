"""The fenced shell block: what is read, what is refused and in which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.calls import Call
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.errors import ProtocolError

PROTOCOL = ShellProtocol()


def command_of(text: str) -> str:
    (call,) = PROTOCOL.parse(text)
    assert call.name == "shell"
    command = call.arguments["command"]
    assert isinstance(command, str)
    return command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("```sh\nls\n```", "ls"),
        ("```bash\nls -la\n```\n", "ls -la"),
        ("```shell\nls\n```", "ls"),
        ("```\nls\n```", "ls"),
        ("```Bash  \nls\n```", "ls"),
        ("I look around.\n\n```sh\nls\n```\nThat shows the files.", "ls"),
        ("  ```sh\nls\n  ```", "ls"),
        ("```sh\r\ncat a\r\ncat b\r\n```\r\n", "cat a\ncat b"),
        ("```sh\nprintf 'a\r\nb'\n```", "printf 'a\r\nb'"),
        ("```sh\nls", "ls"),
        ("```sh\nls\n", "ls"),
        ("```sh\r\nls\r\n", "ls"),
        ("```sh\nls```", "ls"),
        ("```sh\ncat <<'E'\n  indented\n\nE\n```", "cat <<'E'\n  indented\n\nE"),
        ("````sh\nprintf '```python\n```'\n````", "printf '```python\n```'"),
        ("It prints\n```python\nprint(1)\n```\nso\n```sh\nls\n```", "ls"),
        ("Expected:\n```\n3 passed\n```\nSo\n```sh\nls\n```", "ls"),
        ("```sh\necho `date`\n```", "echo `date`"),
        ("<think>\n```sh\nrm x\n```\n?</think>\n```sh\nls\n```", "ls"),
        ("maybe ```sh\nrm x\n``` no\n</think>\n```sh\nls\n```", "ls"),
        ("```sh\ngrep '</think>' a.txt\n```", "grep '</think>' a.txt"),
    ],
)
def test_what_is_read(text: str, command: str) -> None:
    assert command_of(text) == command


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no shell block; write one command between"),
        ("ls -la", "no shell block"),
        ("`ls`", "no shell block"),
        ("```sh\n```", "the shell block is empty"),
        ("```sh\n  \n\t\n```", "the shell block is empty"),
        ("```sh", "the shell block is empty"),
        ("```sh\nls\n```\n```sh\npwd\n```", r"2 shell blocks \(at lines 1, 4\); send one block per turn"),
        ("```\nls\n```\n\n```\npwd\n```", r"2 shell blocks \(at lines 1, 5\)"),
        ("```python\nprint(1)\n```", "the block at line 1 is marked 'python'; only a ```sh block is run"),
        ("```sh\nls\0\n```", "NUL byte at character 2"),
        ("```sh ls -la\n```", "text follows ```sh on line 1"),
        ("```sh\ncat > R <<E\n```python\n1\n```\nE\n```", "a fence opens at line 3 inside the block of line 1"),
        ("```sh\nls\n```sh\npwd\n```", "a fence opens at line 3 inside"),
        ("```sh\necho \ud800\n```", "lone surrogate at character 5"),
        ("<think>\n```sh\nls\n```", "never closed"),
    ],
)
def test_what_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        PROTOCOL.parse(text)


def test_the_length_limit_says_both_numbers() -> None:
    protocol = ShellProtocol(max_chars=10)
    assert protocol.parse("```sh\n1234567890\n```")
    with pytest.raises(ProtocolError, match="the command has 11 characters, the limit is 10"):
        protocol.parse("```sh\n12345678901\n```")


def test_the_stop_string_spares_an_opening_fence() -> None:
    text = "Looking:\n```sh\nls\n```\n\nObservation: made up"
    (stop,) = PROTOCOL.stop
    for sampled in (text[: text.index(stop)], text[: text.index(stop) + len(stop)]):
        assert command_of(sampled) == "ls"


def test_the_instructions_show_a_block_that_parses() -> None:
    assert command_of("\n".join(PROTOCOL.instructions().split("\n")[1:6])) == "ls"


@pytest.mark.parametrize(
    "call",
    [
        Call(name="python", arguments={"command": "ls"}),
        Call(name="shell", arguments={"command": "ls", "timeout": 3}),
        Call(name="shell", arguments={"command": ["ls"]}),
        Call(name="shell", arguments={"command": " "}),
        Call(name="shell", arguments={"command": "\0"}),
    ],
)
def test_only_a_shell_command_is_written(call: Call) -> None:
    with pytest.raises(ProtocolError):
        PROTOCOL.render(call)


FENCE_LIKE = st.lists(
    st.sampled_from(["```", "````", "```sh", "```python", "\n", "\r\n", " ", "ls", "</think>", "`", "<think>", "a"])
).map("".join)


@given(st.one_of(st.text(), FENCE_LIKE).filter(lambda text: text.strip() and "\0" not in text))
def test_round_trip(command: str) -> None:
    call = Call(name="shell", arguments={"command": command})
    assert PROTOCOL.parse(PROTOCOL.render(call)) == (call,)
    if "</think>" not in command:
        assert PROTOCOL.parse("Then:\n" + PROTOCOL.render(call)) == (call,)


@given(st.one_of(st.text(), FENCE_LIKE))
def test_whatever_is_sent_is_read_or_refused(text: str) -> None:
    try:
        calls = PROTOCOL.parse(text)
    except ProtocolError as error:
        assert str(error)
    else:
        assert len(calls) == 1
        assert str(calls[0].arguments["command"]).strip()
