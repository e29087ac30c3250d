"""What is special about sandboxes in containers: images, options, the shell around commands, ways of keeping files."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from agentgym_rtmc.environments.sandbox import folders
from agentgym_rtmc.environments.sandbox.base import MIB, ExecResult, SandboxSpec, WorkspacePathError
from agentgym_rtmc.environments.sandbox.docker import archive
from agentgym_rtmc.environments.sandbox.docker.engine import connect
from agentgym_rtmc.environments.sandbox.docker.files import How
from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox
from agentgym_rtmc.environments.sandbox.opening import open_sandbox
from agentgym_rtmc.errors import ConfigError, ImageMissingError, SandboxError, SandboxUnavailableError

WAYS: tuple[How, ...] = ("overlay", "copy", "commit")
LIBRARIES = [
    path
    for pattern in ("lib64/ld-linux-*", "lib/ld-linux-*", "lib/*-linux-gnu/libc.so.6")
    for path in Path("/").glob(pattern)
]
"""What a shell needs to run."""


@pytest.fixture(scope="module")
def api(engine_folder: Path) -> Iterator[docker.APIClient]:
    """The bare client."""
    client = docker.APIClient(f"unix://{engine_folder}/docker.sock", version="auto", timeout=60)
    yield client
    client.close()


def spec_of(image: str, how: str = "overlay", **fields: object) -> SandboxSpec:
    """A spec for one of the ways."""
    return SandboxSpec.model_validate({"image": image, "writable_root": how == "commit", **fields})


@pytest.fixture(params=WAYS)
def how(request: pytest.FixtureRequest) -> How:
    """One way of keeping files."""
    way: How = request.param
    return way


@pytest.fixture(scope="module")
def filled(api: docker.APIClient, image: str) -> Iterator[str]:
    """An image with files at /testbed, a volume, an environment and a health check of its own."""
    made = api.create_container(image, ["true"])["Id"]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, mode, data in (
            ("testbed/a.py", 0o644, b"x = 1\n"),
            ("testbed/sub/run", 0o4755, b"#!/bin/sh\necho hi\n"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid, entry.mtime = len(data), mode, 0, 1_000_000_000
            tar.addfile(entry, io.BytesIO(data))
        entry = tarfile.TarInfo("testbed/link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
        entry = tarfile.TarInfo("testbed/same")
        entry.type, entry.linkname = tarfile.LNKTYPE, "testbed/a.py"
        tar.addfile(entry)
    api.put_archive(made, "/", packed.getvalue())
    changes = ["ENV COLOUR=blue HOME=/root", "VOLUME /data", "HEALTHCHECK CMD touch /tmp/healthy"]
    name = f"filled:{uuid.uuid4().hex[:8]}"
    api.commit(made, *name.split(":"), changes=changes)
    api.remove_container(made)
    yield name
    api.remove_image(name, force=True)


def test_the_options_that_keep_a_container_in(api: docker.APIClient, image: str) -> None:
    with DockerSandbox(spec_of(image, cpus=0.5, memory_bytes=100 * MIB, processes=30)) as sandbox:
        found = api.inspect_container(sandbox.container)
    host = found["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["CapAdd"]) == ("none", ["ALL"], None)
    assert (host["SecurityOpt"], host["Privileged"]) == (["no-new-privileges"], False)
    assert (host["ReadonlyRootfs"], host["AutoRemove"], host["Init"]) == (True, True, True)
    assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 34)
    assert host["Memory"] == host["MemorySwap"] > 100 * MIB
    assert [mount["Destination"] for mount in found["Mounts"]] == ["/workspace"]
    assert all("nosuid,nodev" in options for options in host["Tmpfs"].values())
    assert found["Config"]["User"] == "0:0"
    assert {"agentgym-rtmc.owner", "agentgym-rtmc.run", "agentgym-rtmc.deadline"} < set(found["Config"]["Labels"])


def test_an_image_that_is_not_there_names_the_command_that_fetches_it(image: str) -> None:
    for spec in (SandboxSpec(image="no-such/image:1"), SandboxSpec(isolation="docker", image="localhost:1/a/b")):
        with pytest.raises(ImageMissingError, match=f"agentgym-rtmc prefetch {spec.image}"):
            open_sandbox(spec)


def test_impossible_specs_say_so(image: str) -> None:
    with pytest.raises(ConfigError, match="is no folder in the image"):
        DockerSandbox(spec_of(image, workdir="/etc/passwd"))
    with pytest.raises(ConfigError, match="writable root"):
        DockerSandbox(spec_of(image), how="commit")


@pytest.mark.parametrize(("files", "complaint"), [({}, "exec /bin/sh failed"), ({"bin/sh": "dash"}, "it has no nice")])
def test_images_without_a_shell_or_its_programs_are_refused(
    api: docker.APIClient, image: str, files: dict[str, str], complaint: str
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("README"), io.BytesIO(b""))
        for name, program in files.items():
            for path in (Path("/bin", program), *LIBRARIES):
                target = name if path.name == program else str(path)[1:]
                tar.add(path.resolve(), target)
        for program in ("cat", "chmod", "cp"):
            tar.add(Path("/bin", program).resolve(), f"bin/{program}")
    name = f"bare:{uuid.uuid4().hex[:8]}"
    api.import_image_from_data(packed.getvalue(), *name.split(":"), changes=["ENV PATH=/bin"])
    try:
        with pytest.raises(SandboxUnavailableError, match=complaint):
            DockerSandbox(spec_of(name))
    finally:
        api.remove_image(name, force=True)


def test_what_the_image_holds_at_the_workspace_is_there_and_the_agent_s(filled: str, how: How) -> None:
    with DockerSandbox(spec_of(filled, how, workdir="/testbed"), how=how) as sandbox:
        listing = sandbox.exec(["sh", "-c", "stat -c '%n %U %a' . a.py sub/run same; readlink link; sub/run; cat same"])
        assert listing.stdout == (
            ". agent 755\na.py agent 644\nsub/run agent 755\nsame agent 644\n/etc/passwd\nhi\nx = 1\n"
        ), listing
        assert sandbox.exec(["sh", "-c", "echo 'x = 2' > a.py; rm sub/run; touch new"]).code == 0
        with sandbox.fork() as child:
            assert child.exec(["sh", "-c", "cat a.py; ls"]).stdout.startswith("x = 2\na.py\nlink\nnew\n")
    with DockerSandbox(spec_of(filled, how, workdir="/testbed"), how=how) as another:
        assert another.read("a.py") == b"x = 1\n"


def test_surroundings_come_from_the_image_but_for_its_user(filled: str) -> None:
    with DockerSandbox(spec_of(filled, env={"MINE": "yes", "LANG": "C"})) as sandbox:
        told = sandbox.exec(["sh", "-c", "echo $COLOUR $HOME $MINE $LANG; ls -d /data; touch /data/x; ls /tmp"])
        assert told.stdout == "blue /tmp yes C\n/data\n"
        assert told.code == 0
        assert "denied" in told.stderr


@pytest.mark.parametrize("engine_here", [True, False])
def test_deadlines_hold_whatever_is_inside(image: str, engine_here: bool) -> None:
    with DockerSandbox(spec_of(image, processes=40)) as sandbox:
        assert sandbox._commands._outside is not None
        if not engine_here:  # as with an engine elsewhere: commands sent in have to do it
            sandbox._commands._outside = None
        for script in (
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
            "import os, time\nwhile True:\n    try:\n        os.fork() or time.sleep(99)\n    except OSError: pass",
            "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass",
        ):
            result = sandbox.exec(["python", "-c", script], timeout=1)
            assert (result.timed_out, result.code) == (True, 137), script
            assert sandbox.exec(["echo", "next"]).stdout == "next\n"


def test_the_shell_around_commands_can_be_killed_but_not_changed(image: str) -> None:
    with DockerSandbox(spec_of(image)) as sandbox:
        trace = "import ctypes, os; print(ctypes.CDLL(None).ptrace(16, os.getppid(), None, None))"
        assert sandbox.exec(["python", "-c", trace]).stdout == "-1\n"
        assert sandbox.exec(["sh", "-c", "cat /.sandbox/sh; echo > /.sandbox/sh; rm -f /.sandbox/sh"]).stdout == ""
        killing = sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 0.2; echo still there; sleep 60 & exit 0"])
        assert (killing.code, killing.stdout) == (137, "still there\n")
        everything = sandbox.exec(["bash", "-c", "kill -9 -1; echo survived"])
        assert everything.stdout == "survived\n"
        left = "import glob\nprint(sorted(open(name).read().strip() for name in glob.glob('/proc/[0-9]*/comm')))"
        assert sandbox.exec(["python", "-c", left]).stdout == "['cat', 'docker-init', 'python', 'sh', 'timeout']\n"


@pytest.mark.parametrize("how", ["overlay", "copy"])
def test_a_shell_that_is_starved_is_noticed(image: str, how: How) -> None:
    """The agent may limit processes of its own user, the shell around its command too, and print what it would."""
    starve = (
        "import os, resource\nopen('/tmp/kept', 'w').write('x')\n"
        "for name in (resource.RLIMIT_NPROC, resource.RLIMIT_AS):\n"
        "    resource.prlimit(os.getppid(), name, (0, 0))\n"
        "os.write(1, b'said\\x01')\n"
    )
    with DockerSandbox(spec_of(image), how=how) as sandbox:
        assert sandbox.exec(["python", "-c", starve]).stdout == "said\x01"
        assert sandbox.exec(["ls", "-A", "/tmp"]) == ExecResult("", "", 0)


def test_our_shell_s_variables_are_not_the_command_s(image: str) -> None:
    names = {name: f"mine-{name}" for name in ("w", "p", "c", "i", "f", "end")}
    with DockerSandbox(spec_of(image, env=names)) as sandbox:
        told = sandbox.exec(["env"]).stdout.splitlines()
        assert {f"{name}={text}" for name, text in names.items()} <= set(told)
        assert not [line for line in told if line.lower().startswith("sandbox")]


def test_files_in_memory_are_counted_wherever_they_are(image: str) -> None:
    make = "import sys\nfor i in range(1000): open(f'{sys.argv[1]}/{i}', 'w').close()"
    with DockerSandbox(spec_of(image, disk_files=100)) as sandbox:
        for place in ("/workspace", "/tmp", "/dev/shm"):
            assert "No space left on device" in sandbox.exec(["python", "-c", make, place]).stderr
        assert (
            sandbox.exec(["python", "-c", "import tempfile; tempfile.TemporaryFile(); print('fine')"]).stdout
            == "fine\n"
        )


def test_programs_of_the_agent_s_own_are_not_taken_for_ours(image: str) -> None:
    path = "/workspace/bin:/usr/local/bin:/usr/bin:/bin"
    with DockerSandbox(spec_of(image, env={"PATH": path}), how="copy") as sandbox:
        fake = "#!/bin/dash\necho fake; sleep 60 & exit 7\n"
        plant = f"for name in nice sh cat stat chmod tar wc mkdir mv rm; do printf '{fake}' > bin/$name; done"
        sandbox.exec(["/bin/sh", "-c", f"/bin/mkdir bin; {plant}; /bin/chmod 755 bin/*"])
        assert sandbox.exec(["rm", "x"]).stdout == "fake\n"
        assert sandbox.exec(["/bin/dash", "-c", "echo x > /tmp/f; echo ran"]).stdout == "ran\n"
        assert sandbox.exec(["ls", "/tmp"]).stdout == ""
        assert sandbox.read("bin/rm").startswith(b"#!/bin/dash")
        with sandbox.fork() as child:
            assert child.exec(["ls"]).stdout == "bin\n"


def test_nothing_but_files_passes_to_the_next_command(image: str, how: How) -> None:
    with DockerSandbox(spec_of(image, how), how=how) as sandbox:
        leave = (
            "import ctypes, os, signal\nlibc = ctypes.CDLL(None)\nprint(libc.shmget(7, 4096, 0o1600) >= 0)\n"
            "print(libc.msgget(7, 0o1600), libc.semget(7, 9, 0o1600))\n"
            "os.makedirs('/tmp/a/b'); open('/tmp/a/b/c', 'w'); os.chmod('/tmp/a/b', 0); os.chmod('/tmp/a', 0)\n"
            "open('/tmp/.hidden', 'w'); open('/dev/shm/x', 'w'); os.symlink('/etc', '/tmp/..link')\n"
            "if os.fork() == 0:\n    signal.pause()\n"
        )
        assert sandbox.exec(["python", "-c", leave]).stdout == "True\n-1 -1\n"
        look = (
            "import ctypes, os\nprint(ctypes.CDLL(None).shmget(7, 4096, 0), os.listdir('/tmp'), os.listdir('/dev/shm'))"
        )
        assert sandbox.exec(["python", "-c", look]).stdout == "-1 [] []\n"


def test_a_child_that_holds_the_streams_delays_nothing(image: str) -> None:
    """The engine alone would wait two seconds for each such command."""
    with DockerSandbox(spec_of(image)) as sandbox:

        def six(script: str) -> float:
            begun = time.monotonic()
            for _ in range(6):
                assert sandbox.exec(["sh", "-c", script]) == ExecResult("done\n", "", 0)
            return time.monotonic() - begun

        alone = six("echo done")
        assert six("sleep 60 & echo done") < alone + 6


def test_bytes_that_are_no_text_reach_the_command(image: str) -> None:
    with DockerSandbox(spec_of(image)) as sandbox:
        words = [b"\xff\x80".decode("utf-8", "surrogateescape"), "it's", '$HOME `x` \\ "', "two\nlines\n", ""]
        script = "import sys; print([word.encode('utf-8', 'surrogateescape') for word in sys.argv[1:]])"
        told = sandbox.exec(["python", "-c", script, *words])
        assert told.stdout == "[b'\\xff\\x80', b\"it's\", b'$HOME `x` \\\\ \"', b'two\\nlines\\n', b'']\n", told


def test_a_writable_root_is_watched(image: str) -> None:
    with DockerSandbox(spec_of(image, "commit", disk_bytes=8 * MIB)) as sandbox:
        assert sandbox.exec(["sh", "-c", "echo x > /var/tmp/f && cat /var/tmp/f"]).stdout == "x\n"
        fill = "cd /var/tmp; i=0; while :; do i=$((i+1)); head -c 500000 /dev/zero > f$i; sleep 0.05; done"
        result = sandbox.exec(["sh", "-c", fill], timeout=20)
        assert (result.out_of_disk, result.code, result.timed_out) == (True, 137, False), result
        with sandbox.fork() as child:  # what was written before counts for it, too
            assert child.exec(["sh", "-c", "head -c 2000000 /dev/zero > /var/tmp/more; sleep 5"]).out_of_disk
        sandbox.exec(["sh", "-c", "rm -f /var/tmp/f*"])
        assert sandbox.exec(["echo", "usable"]).stdout == "usable\n"


def test_forks_of_forks_leave_no_image(api: docker.APIClient, image: str) -> None:
    before = {row["Id"] for row in api.images(all=True)}
    first = DockerSandbox(spec_of(image, "commit"))
    first.write("f", b"1")
    second = first.fork()
    third = second.fork()
    assert third.read("f") == b"1"
    for sandbox in (first, second, third):  # the parents first, on whose images the others stand
        sandbox.close()
    assert {row["Id"] for row in api.images(all=True)} == before


def test_forks_after_the_first_find_a_container_ready(image: str) -> None:
    with DockerSandbox(spec_of(image)) as parent:
        parent.prepare_forks(3)
        parent.write("f", b"1")
        children = [parent.fork() for _ in range(5)]
        assert [child.exec(["sh", "-c", "cat f; echo 2 > f"]).stdout for child in children] == ["1"] * 5
        for child in children:
            child.close()
        assert parent.read("f") == b"1"


def test_both_kinds_of_memory_accounts_agree(image: str) -> None:
    """The kernel's own counts, and the engine's events for engines elsewhere."""
    from agentgym_rtmc.environments.sandbox.docker import memory

    with DockerSandbox(spec_of(image, memory_bytes=64 * MIB, disk_bytes=MIB)) as sandbox:
        counts = [sandbox._parts.memory, memory.EventMemory(connect(), sandbox.container)]
        assert isinstance(counts[0], memory.KernelMemory)
        for kind in counts:
            sandbox._parts.memory = kind
            small = sandbox.exec(["python", "-c", "x = b'x' * 20_000_000"])
            assert (small.code, small.out_of_memory) == (0, False)
            large = sandbox.exec(["sh", "-c", "python -c \"x = b'x' * 500_000_000\"; sleep 20"], timeout=15)
            assert (large.code, large.out_of_memory, large.timed_out) == (137, True, False), (kind, large)
        counts[1].close()


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../outside", tarfile.REGTYPE, ""),
        ("/outside", tarfile.REGTYPE, ""),
        ("top/../../outside", tarfile.REGTYPE, ""),
        ("top/hard", tarfile.LNKTYPE, "../outside"),
        ("top/hard", tarfile.LNKTYPE, "/etc/passwd"),
    ],
)
def test_archives_that_lead_outside_are_refused(tmp_path: Path, name: str, kind: bytes, target: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, target
        tar.addfile(entry)
    (tmp_path / "in").mkdir()
    packed.seek(0)
    with pytest.raises(SandboxError, match="lies outside"):
        archive.unpack(packed, tmp_path / "in")
    packed.seek(0)
    with pytest.raises(SandboxError, match="lies outside"):
        archive.for_agent(packed, io.BytesIO(), ".")
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


def test_archives_cannot_write_through_their_own_links(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        link = tarfile.TarInfo("top/link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("top/link/outside"), io.BytesIO(b""))
    (tmp_path / "in").mkdir()
    packed.seek(0)
    with pytest.raises(OSError):
        archive.unpack(packed, tmp_path / "in")
    assert not (tmp_path / "outside").exists()


def test_archives_lose_devices_and_set_id_bits(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        device = tarfile.TarInfo("top/device")
        device.type, device.devmajor, device.devminor = tarfile.BLKTYPE, 254, 0
        tar.addfile(device)
        program = tarfile.TarInfo("top/program")
        program.mode = 0o6755
        tar.addfile(program)
    packed.seek(0)
    copy = io.BytesIO()
    assert archive.for_agent(packed, copy, ".") == 1
    copy.seek(0)
    with tarfile.open(fileobj=copy) as tar:
        assert [(entry.name, entry.mode, entry.uid) for entry in tar] == [("./program", 0o755, 65534)]
    packed.seek(0)
    archive.unpack(packed, tmp_path)
    assert [(path.name, path.stat().st_mode & 0o7777) for path in tmp_path.iterdir()] == [("program", 0o755)]


def test_files_that_cannot_be_copied_refuse_the_fork(image: str) -> None:
    with DockerSandbox(spec_of(image), how="copy") as sandbox:
        sandbox.exec(["sh", "-c", "mkdir d; touch d/f; chmod 000 d"])
        with pytest.raises(WorkspacePathError, match="cannot be copied"):
            sandbox.fork()
        assert sandbox.exec(["echo", "usable"]).stdout == "usable\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as an ordinary user")
def test_works_for_an_ordinary_user_who_may_use_the_engine(engine_folder: Path, image: str, filled: str) -> None:
    """Such a user cannot mount, so files are copied, and the kernel's counts may be closed to them."""
    with DockerSandbox(spec_of(image)) as sandbox:  # everything that is needed is imported now, as long as it may be
        sandbox.exec(["true"])
    place = Path(tempfile.mkdtemp(prefix="ordinary-", dir="/var/tmp"))
    sock = engine_folder / "docker.sock"
    folder_mode, sock_mode = engine_folder.stat().st_mode, sock.stat().st_mode
    try:
        place.chmod(0o777)
        engine_folder.chmod(0o711)
        sock.chmod(0o666)
        answer = in_a_child(lambda: as_ordinary_user(place, filled))
    finally:
        sock.chmod(sock_mode & 0o777)
        engine_folder.chmod(folder_mode & 0o777)
        shutil.rmtree(place)
    assert answer == ("copy", "x = 1\n65534\n", True, "x = 2\n", True, []), answer


def as_ordinary_user(place: Path, image: str) -> object:
    """Become nobody for good and use a container."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.environ |= {"XDG_CACHE_HOME": str(place / "cache"), "HOME": str(place)}
    tempfile.tempdir = str(place)
    with DockerSandbox(spec_of(image, workdir="/testbed", memory_bytes=64 * MIB)) as sandbox:
        first = sandbox.exec(["sh", "-c", "cat a.py; id -u"]).stdout
        late = sandbox.exec(["sleep", "60"], timeout=0.3).timed_out
        sandbox.write("a.py", b"x = 2\n")
        with sandbox.fork() as child:
            second = child.exec(["cat", "a.py"]).stdout
        large = sandbox.exec(["python", "-c", "x = b'x' * 500_000_000"], timeout=20).out_of_memory
        how = sandbox.how
    left = [path.name for path in folders.run_folder().iterdir() if path.name != "lock"]
    return how, first, late, second, large, left


def in_a_child(work: Callable[[], object]) -> object:
    """Run `work` in a forked child and return its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            answer: object = work()
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
            answer = traceback.format_exc()
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        result: object = pickle.load(pipe)
    os.waitpid(pid, 0)
    return result
