"""Make the virtual environment of the Makefile: check what the machine must bring, then install the locked packages.

Invariants: nothing outside the environment's folder is touched; an interrupted run continues where it stopped; a
finished one is recognised by a stamp and costs a few milliseconds. Kept readable by old Pythons so that a too old
one gets a sentence instead of a syntax error.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOCK = os.path.join(ROOT, ".ci", "requirements.lock")


def stop(message):
    """Print one sentence on what is missing and leave."""
    sys.exit("setup: " + message)


def check_prerequisites():
    """Name each missing prerequisite with the package that brings it."""
    if sys.version_info < (3, 11):
        version = "%d.%d" % sys.version_info[:2]
        stop(
            "Python 3.11 or newer is needed, this is %s (%s). Install one (Debian/Ubuntu: apt install python3.11 "
            "python3.11-venv) and run: make PYTHON=python3.11 ..." % (version, sys.executable)
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop(
            "this Python has no venv module. Install it (Debian/Ubuntu: apt install python%d.%d-venv; Fedora: dnf "
            "install python3) and run the command again." % sys.version_info[:2]
        )
    if shutil.which("git") is None:
        stop("git is missing. Install it (Debian/Ubuntu: apt install git; Fedora: dnf install git).")


EXTRAS = {"train": "train", "develop": "all,dev"}
"""What each kind of environment installs; one for development serves for training too."""


def wanted_stamp(torch, kind):
    """Return a digest of all that determines the environment's content."""
    digest = hashlib.sha256()
    for path in (LOCK, os.path.join(ROOT, "pyproject.toml")):
        with open(path, "rb") as handle:
            digest.update(handle.read())
    digest.update(("%s %s %s %s" % (torch, sys.version, ROOT, kind)).encode())
    return digest.hexdigest()


def run(what, argv):
    """Run one installation step; a failure says what to look at."""
    print("setup: " + what, flush=True)
    if subprocess.call(argv) != 0:
        stop("%s failed (see above). Once the cause is mended, the same command continues here." % what)


def install(folder, torch, kind):
    """Create the environment and install torch, then this project (editable) with its extras, at locked versions."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        run("creating " + os.path.relpath(folder), [sys.executable, "-m", "venv", "--clear", folder])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    pip += ["--constraint", LOCK]
    run("installing %s (the largest part)" % torch, [*pip, *torch.split(), "setuptools"])
    project = "%s[%s]" % (ROOT, EXTRAS[kind])
    run("installing agentgym-rtmc and the locked packages", [*pip, "--no-build-isolation", "--editable", project])


def main():
    """Bring the environment up to date unless its stamp says that it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", default=os.path.join(ROOT, ".venv"))
    parser.add_argument("--torch", default="torch==2.13.0")
    parser.add_argument("--for", dest="kind", choices=sorted(EXTRAS), default="develop")
    options = parser.parse_args()
    check_prerequisites()
    import fcntl  # after the version check: absent on Windows, where the README sends people to WSL2

    folder = os.path.abspath(options.venv)
    stamp = os.path.join(folder, ".agentgym-rtmc")
    enough = [wanted_stamp(options.torch, kind) for kind in (options.kind, "develop")]
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(folder + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # `make train` and `make test` may be started side by side
        if os.path.exists(stamp) and open(stamp).read() in enough:
            return
        install(folder, options.torch, options.kind)
        with open(stamp + ".new", "w") as handle:
            handle.write(enough[0])
        os.replace(stamp + ".new", stamp)


if __name__ == "__main__":
    main()
