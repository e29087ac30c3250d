"""What sandboxes cost, on every local back end and in containers: commands, a sandbox's life, many at once.

Each step is taken in turn by bare calls (processes on equal files; the engine's client with the same limits) and by a
sandbox, in the same run, so that a busy machine hurts both alike. Printed are medians and 99th percentiles in
milliseconds of wall time, and for local commands CPU time of this process and all its children.
Local commands run as the environments run them, with and without remembered results; the steps of a life are those of
a plain sandbox: start, a command, fork with the first command in it, back to the prepared state, close.

Containers need an engine (DOCKER_HOST) and an image; without an engine they are left out, and why is said.
`python benchmarks/sandbox.py [--rounds 40] [--many SANDBOXES EXECS] [--image NAME] [--json]`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from sandboxes import containers, local
from sandboxes.measuring import Row, show

from agentgym_rtmc.environments.sandbox import local as back_ends
from agentgym_rtmc.environments.sandbox import root
from agentgym_rtmc.environments.sandbox.docker import images, ways
from agentgym_rtmc.environments.sandbox.docker.engine import connect
from agentgym_rtmc.errors import SandboxUnavailableError


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--many", type=int, nargs=2, default=(64, 2000), metavar=("SANDBOXES", "EXECS"))
    parser.add_argument("--image", help="of containers; default: one made of this machine's own packages")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    commands: list[Row] = []
    lives: list[Row] = []
    load: list[Row] = []
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        for isolation in back_ends.ISOLATING:
            if reason := back_ends.why_not(isolation, root.ensure_root()):
                left_out[isolation] = reason
                continue
            commands += local.commands(isolation, given.rounds, Path(name))
            lives += local.life(isolation, given.rounds, Path(name))
            load.append(local.load(isolation, *given.many))
    try:
        engine = connect()
    except SandboxUnavailableError as error:
        left_out["docker"] = str(error)
    else:
        image = given.image or containers.base_image()
        if reason := ways.why_no_overlay(images.find(engine, image)):
            left_out["docker, files by overlay"] = reason
        else:
            lives += containers.life(engine, image, "overlay", given.rounds)
        lives += containers.life(engine, image, "copy", max(1, given.rounds // 3))
        load.append(containers.load(image, *given.many))
    if given.json:
        print(json.dumps({"commands": commands, "steps": lives, "many": load, "left out": left_out}, indent=1))
        return
    for rows in (commands, lives, load):
        show(rows)
    for what, reason in left_out.items():
        print(f"left out: {what}: {reason}")


if __name__ == "__main__":
    main()
