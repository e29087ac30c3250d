"""Resolve all extras into `.ci/requirements.lock`: `name==version` pins for every platform, without addresses.

torch and what only its accelerator builds need are left out: the Makefile's TORCH variable chooses those.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "requirements.lock"
TORCH = re.search(r"^TORCH \?= (torch==\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
ELSEWHERE = re.compile(r"^(torch|triton|nvidia-|cuda-)")


def main() -> None:
    """Run uv's resolver in a throw-away environment and write the lock file."""
    if TORCH is None:
        sys.exit("lock: the Makefile has no default TORCH pin")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([f"{folder}/bin/pip", "install", "--quiet", "uv"], check=True)
        constraint = Path(folder) / "constraint.txt"
        constraint.write_text(TORCH.group(1) + "\n")
        argv = [f"{folder}/bin/uv", "pip", "compile", str(ROOT / "pyproject.toml"), "--all-extras", "--universal"]
        argv += ["--python-version", "3.11", "--no-annotate", "--no-header", "--constraint", str(constraint)]
        resolved = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    LOCK.write_text("".join(line for line in resolved.splitlines(keepends=True) if not ELSEWHERE.match(line)))
    print(f"{LOCK.relative_to(ROOT)}: {len(LOCK.read_text().splitlines())} packages")


if __name__ == "__main__":
    main()
