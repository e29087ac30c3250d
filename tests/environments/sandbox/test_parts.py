"""Small parts: specs, paths, streams, the choice of a back end, doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentgym_rtmc.environments.sandbox import cgroups, doctor, landlock, layers, local
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.output import HeadTail
from agentgym_rtmc.errors import ConfigError, SandboxUnavailableError


def test_specs_are_frozen_checked_and_comparable() -> None:
    assert SandboxSpec().digest == SandboxSpec(timeout=10).digest != SandboxSpec(timeout=11).digest
    with pytest.raises(ValidationError):
        SandboxSpec().timeout = 3  # type: ignore[misc]
    for field, value in [
        ("timeout", 0),
        ("memory_bytes", 1),
        ("processes", 0),
        ("workdir", "relative"),
        ("workdir", "/"),
        ("workdir", "/a/../b"),
        ("env", {"A=B": "x"}),
        ("env", {"A": "x\0"}),
        ("env", {"A": "x" * 200_000}),
        ("timeout", float("inf")),
        ("ttl", float("inf")),
        ("cpus", float("inf")),
        ("cpu_seconds", 1 << 62),
        ("processes", 10**10),
        ("isolation", "hope"),
        ("unknown", 1),
    ]:
        with pytest.raises(ValidationError):
            SandboxSpec.model_validate({field: value})


def test_an_impossible_workdir_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="/testbed"):
        LocalSandbox(SandboxSpec(workdir="/somewhere"))


def test_another_workdir(isolation: str) -> None:
    with LocalSandbox(SandboxSpec(isolation=isolation, workdir="/testbed")) as sandbox:
        sandbox.write("/testbed/f", b"here\n")
        assert sandbox.exec(["sh", "-c", "pwd; cat f; ls /workspace"]).stdout == "/testbed\nhere\n"


@given(st.lists(st.binary(max_size=40)), st.integers(2, 60))
def test_head_and_tail_keep_what_fits(chunks: list[bytes], limit: int) -> None:
    spilled: list[bytes] = []
    stream = HeadTail(limit, spilled.append)
    for chunk in chunks:
        stream.feed(chunk)
    whole = b"".join(chunks)
    assert b"".join(spilled) == (whole if stream.truncated else b"")
    stream.spill_all()
    assert b"".join(spilled) == whole
    assert stream.total == len(whole)
    assert stream.truncated == (len(whole) > limit)
    if not stream.truncated:
        assert stream.text() == whole.decode("utf-8", "replace")
    else:
        note = f"\n[... {len(whole) - limit} bytes left out ...]\n".encode()
        expected = whole[: limit // 2] + note + whole[-(limit - limit // 2) :]
        assert stream.text() == expected.decode("utf-8", "replace")


def test_refuses_where_nothing_works(monkeypatch: pytest.MonkeyPatch, root_folder: Path) -> None:
    monkeypatch.delenv(local.UNSAFE_SWITCH, raising=False)
    monkeypatch.setattr(local, "_tried", {})
    monkeypatch.setattr(local, "HOST_ENVIRONMENT", {"PATH": "/nowhere"})
    monkeypatch.setattr(landlock, "NEEDED_VERSION", 99)
    with pytest.raises(SandboxUnavailableError) as caught:
        LocalSandbox()
    message = str(caught.value)
    for part in (
        "bwrap",
        "package bubblewrap",
        "util-linux",
        "Linux 6.12",
        "apt install",
        "apparmor",
        local.UNSAFE_SWITCH,
    ):
        assert part in message, part
    checks = {check.name: check for check in doctor.checks()}
    assert checks["sandbox by bubblewrap"].status == checks["sandbox by unshare"].status == "missing"
    assert checks["sandbox by landlock"].status == "missing"
    assert "apt install" in checks["sandbox by bubblewrap"].fix


def test_falls_back_to_unshare_without_bubblewrap(monkeypatch: pytest.MonkeyPatch, root_folder: Path) -> None:
    if local.why_not("unshare", root_folder):
        pytest.skip("unshare does not work here")
    monkeypatch.delenv(local.UNSAFE_SWITCH, raising=False)
    monkeypatch.setattr(local, "_tried", {("bubblewrap", root_folder): "not installed"})
    with LocalSandbox() as sandbox:
        assert sandbox.backend == "unshare"


def test_falls_back_to_landlock_without_namespaces(monkeypatch: pytest.MonkeyPatch, root_folder: Path) -> None:
    if local.why_not("landlock", root_folder):
        pytest.skip("landlock does not work here")
    monkeypatch.delenv(local.UNSAFE_SWITCH, raising=False)
    monkeypatch.setattr(local, "_tried", {(name, root_folder): "forbidden" for name in ("bubblewrap", "unshare")})
    with LocalSandbox() as sandbox:
        assert sandbox.backend == "landlock"


UNSAFE = """
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
for _ in range(2):
    with LocalSandbox(SandboxSpec(isolation={isolation!r})) as sandbox:
        sandbox.write("f", b"x")
        print(sandbox.backend, sandbox.exec(["sh", "-c", "cat f; python -c 'print(1)'"]).stdout.split())
        print(sandbox.exec(["sh", "-c", "sleep 50 & sleep 50"], timeout=0.3).timed_out)
"""


@pytest.mark.parametrize(("isolation", "switch"), [("none", "0"), ("auto", "1")])
def test_without_isolation_only_on_request_and_with_one_warning(isolation: str, switch: str) -> None:
    environment = os.environ | {local.UNSAFE_SWITCH: switch}
    script = UNSAFE.format(isolation=isolation)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "none ['x1']\nTrue\n" * 2
    assert done.stderr.count("WITHOUT ISOLATION") == 1


def test_the_unsafe_switch_does_not_weaken_a_chosen_back_end(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local.UNSAFE_SWITCH, "1")
    with LocalSandbox(SandboxSpec(isolation=isolation)) as sandbox:
        assert sandbox.backend == isolation


def test_doctor_finds_what_works(isolation: str) -> None:
    checks = {check.name: check for check in doctor.checks()}
    assert checks[f"sandbox by {isolation}"].status == "ok"
    assert checks["sandbox root"].status == "ok"
    assert all(check.fix for check in checks.values() if check.status != "ok")


def test_doctor_tells_what_the_kernel_holds() -> None:
    checks = {check.name: check for check in doctor.checks()}
    for controller in cgroups.CONTROLLERS:
        held = controller not in cgroups.reasons()
        assert (checks[f"sandbox {controller} group"].status == "ok") == held
    assert (checks["sandbox workspaces"].status == "ok") == (not layers.why_not())
