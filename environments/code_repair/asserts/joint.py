"""Runs tests and the program under test in one process. Runs inside a sandbox of its own.

Nothing here can be believed by itself, as the program may do anything to this process. It is worth something because
nobody in here knows whether the tests are to pass or to fail; see `together.py`.

Standard input is JSON: {"modules": {name: text}, "source": text, "aliases": [module names], "tests": text}. Standard
output is JSON: {test: null or what went wrong}.
"""

from __future__ import annotations

import sys
from typing import Any

from agentgym_rtmc.environments.code_repair.asserts import harness
from agentgym_rtmc.environments.code_repair.asserts.tester import load, run_tests, serve


def run(request: dict[str, Any]) -> dict[str, str | None]:
    """Run the tests of a request."""
    sys.modules["pytest"] = harness.stand_in()
    for name, text in request["modules"].items():
        load(name, text)
    program = load("m", request["source"])
    sys.modules.update(dict.fromkeys(request["aliases"], program))
    names = {name: thing for name, thing in vars(program).items() if not name.startswith("__")}
    return run_tests(request["tests"], names)


def main() -> None:
    """Serve one request."""
    serve(run)


if __name__ == "__main__":
    main()
