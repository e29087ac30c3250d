"""Type-check a regular install of the package: static checkers do not follow the mapping of an editable one."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Install into a temporary folder and run mypy over the namespace from there."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--target", folder, str(ROOT)], check=True)
        argv = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
        argv += ["--cache-dir", str(ROOT / ".mypy_cache"), "-p", "agentgym_rtmc"]
        return subprocess.run(argv, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
