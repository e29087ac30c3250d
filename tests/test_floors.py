"""The floors of the house: who may import whom, what stays light, and that everything is packed and described.

The ground floor knows no room; signatures and environments know only the ground floor; the trainer knows the ground
floor and signatures, and reaches environments through Gymnasium alone.
"""

import ast
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "agentgym_rtmc": ROOT / "agentgym_rtmc",
    "agentgym_rtmc.environments": ROOT / "environments",
    "agentgym_rtmc.signatures": ROOT / "signatures",
    "agentgym_rtmc.trainer": ROOT / "trainer",
}
GROUND, ENVIRONMENTS, SIGNATURES, TRAINER = FOLDERS
FILES = {
    ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
    for package, folder in FOLDERS.items()
    for path in sorted(folder.rglob("*.py"))
    # Programs that environments hand to agents are data, not modules of ours.
    if all((parent / "__init__.py").exists() for parent in path.parents if parent.is_relative_to(folder))
}

MAY_IMPORT = {
    GROUND: {GROUND},
    SIGNATURES: {GROUND, SIGNATURES},
    ENVIRONMENTS: {GROUND, ENVIRONMENTS},
    TRAINER: {GROUND, SIGNATURES, TRAINER},
}

# Heavy or optional package -> the modules (with what lies under them) that may import it, at any depth of the code.
ALLOWED = {
    "torch": [
        "agentgym_rtmc.machine",
        "agentgym_rtmc.trainer.learner",
        "agentgym_rtmc.trainer.metrics",
        "agentgym_rtmc.trainer.policy",
        "agentgym_rtmc.trainer.threads",
    ],
    "transformers": ["agentgym_rtmc.trainer.learner", "agentgym_rtmc.trainer.policy"],
    "tokenizers": ["agentgym_rtmc.trainer.policy"],
    "safetensors": ["agentgym_rtmc.trainer.learner", "agentgym_rtmc.trainer.policy"],
    "matplotlib": ["agentgym_rtmc.signatures.measure_plot", "agentgym_rtmc.trainer"],
    "tensorboard": ["agentgym_rtmc.trainer"],
    "pyarrow": ["agentgym_rtmc.environments.swebench.sources", "agentgym_rtmc.trainer.credit_files"],
    "networkx": ["agentgym_rtmc.trainer.credit.view"],
    "vllm": ["agentgym_rtmc.trainer.policy.vllm"],
    "ray": [],
    "docker": ["agentgym_rtmc.environments.sandbox.docker"],
    "tenacity": ["agentgym_rtmc.environments.sandbox.docker", "agentgym_rtmc.trainer.policy.endpoint"],
    "swebench": ["agentgym_rtmc.environments.swebench"],
    "huggingface_hub": ["agentgym_rtmc.environments.code_repair", "agentgym_rtmc.environments.swebench.sources"],
    "httpx2": ["agentgym_rtmc.trainer.policy.endpoint"],
    "libcst": ["agentgym_rtmc.environments"],
    "tree_sitter": ["agentgym_rtmc.signatures"],
    "tree_sitter_bash": ["agentgym_rtmc.signatures"],
}
HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "matplotlib",
    "tensorboard",
    "pyarrow",
    "networkx",
    "vllm",
    "docker",
    "tenacity",
    "swebench",
    "huggingface_hub",
    "httpx2",
)
WITHOUT_TORCH = (
    GROUND,
    ENVIRONMENTS,
    SIGNATURES,
    "agentgym_rtmc.trainer.credit",
    "agentgym_rtmc.trainer.credit_commands",
    "agentgym_rtmc.trainer.collect",
    "agentgym_rtmc.trainer.commands",
    "agentgym_rtmc.trainer.config",
    "agentgym_rtmc.trainer.credit_step",
    "agentgym_rtmc.trainer.preparation",
    "agentgym_rtmc.trainer.rollout",
)


def room_of(module: str) -> str:
    return next((room for room in (ENVIRONMENTS, SIGNATURES, TRAINER) if is_within(module, [room])), GROUND)


def is_within(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@cache
def imports_of(module: str) -> list[tuple[str, int]]:
    """All imports of a module, wherever they stand in it, as (absolute name, line)."""
    path = FILES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from agentgym_rtmc import trainer` imports a module, `from agentgym_rtmc.tasks import Task` a name.
            found += [
                (name if (name := f"{base}.{alias.name}") in FILES else base, node.lineno) for alias in node.names
            ]
    return found


def test_there_is_something_to_test() -> None:
    assert {room_of(module) for module in FILES} == set(FOLDERS)
    names = {name for name, _ in imports_of("agentgym_rtmc.registration")}
    assert {"gymnasium", "agentgym_rtmc.errors"} <= names


@pytest.mark.parametrize("module", FILES)
def test_no_arrow_runs_up(module: str) -> None:
    room = room_of(module)
    wrong = [
        f"{FILES[module].relative_to(ROOT)}:{line} imports {name}"
        for name, line in imports_of(module)
        if is_within(name, [GROUND]) and room_of(name) not in MAY_IMPORT[room]
    ]
    assert not wrong, f"{room} may import only {sorted(MAY_IMPORT[room])}"


@pytest.mark.parametrize("module", FILES)
def test_rooms_are_imported_by_their_full_names(module: str) -> None:
    bare = [
        name for name, _ in imports_of(module) if name.partition(".")[0] in ("environments", "signatures", "trainer")
    ]
    assert not bare, "import agentgym_rtmc.<room>: the bare name would be a second copy of every class"


@pytest.mark.parametrize("package", ALLOWED)
def test_heavy_packages_stay_where_they_are_needed(package: str) -> None:
    wrong = [
        f"{FILES[module].relative_to(ROOT)}:{line}"
        for module in FILES
        for name, line in imports_of(module)
        if name.partition(".")[0] == package and not is_within(module, ALLOWED[package])
    ]
    assert not wrong, f"{package} may be imported in {ALLOWED[package]} only"


def run_python(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT / "tests",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_half_the_house_works_without_torch() -> None:
    """Every module of these rooms is imported in a process in which the heavy packages cannot be."""
    modules = [
        module
        for module in FILES
        if is_within(module, list(WITHOUT_TORCH[1:])) or room_of(module) == GROUND
        if not module.endswith("__main__")
        if not any(is_within(module, ALLOWED[package]) for package in ("docker", "swebench"))
    ]
    assert len(modules) > 30
    script = """
        import importlib, sys
        *modules, heavy = sys.argv[1:]
        for package in heavy.split(","):
            sys.modules[package] = None
        for module in modules:
            importlib.import_module(module)
        print(len(modules))
    """
    assert run_python(script, *modules, ",".join(HEAVY)) == f"{len(modules)}\n"


def test_importing_the_package_is_light() -> None:
    script = """
        import sys
        import agentgym_rtmc
        heavy = {"rich", "typer", "libcst", "tree_sitter", "pytest", *sys.argv[1:]}
        print(sorted(heavy & set(sys.modules)))
        print([name for name in sys.modules if name.startswith("agentgym_rtmc.") and name.split(".")[1]
               in ("environments", "signatures", "trainer")])
    """
    assert run_python(script, *HEAVY) == "[]\n[]\n"


def test_importing_the_package_registers_the_environments_lazily() -> None:
    script = """
        import agentgym_rtmc, gymnasium, sys
        spec = gymnasium.spec("agentgym_rtmc/CodeRepair-v0")
        print(spec.entry_point, "agentgym_rtmc.environments" in sys.modules)
    """
    assert run_python(script) == "agentgym_rtmc.environments.code_repair.env:CodeRepairEnv False\n"


def test_no_room_is_loaded_twice() -> None:
    assert not {"environments", "signatures", "trainer"} & set(sys.modules)


def test_every_package_is_packed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {module for module, path in FILES.items() if path.name == "__init__.py"}
    assert set(project["tool"]["setuptools"]["packages"]) == packages


def test_every_module_lies_in_a_package() -> None:
    """A folder without `__init__.py` is not installed; only data may lie in one."""
    stray = {path for folder in FOLDERS.values() for path in folder.rglob("*.py")} - set(FILES.values())
    assert {path.parent.name for path in stray} <= {"programs"}


def public_definitions(tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node


@pytest.mark.parametrize("module", FILES)
def test_every_module_says_what_it_is_for(module: str) -> None:
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    purpose = ast.get_docstring(tree)
    assert purpose, f"{FILES[module].relative_to(ROOT)} has no docstring"
    silent = [node.name for node in public_definitions(tree) if not ast.get_docstring(node)]
    assert not silent


def names_of(path: Path) -> set[str]:
    """Names a module defines or assigns at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return assigned | {node.name for node in public_definitions(tree)}


def test_lazy_references_lead_somewhere() -> None:
    """Every `module:name` in the ground floor's tables names a module and a definition that exist."""
    references = {
        node.value
        for module in FILES
        if room_of(module) == GROUND
        for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{GROUND}.")
        if node.value.count(":") == 1 and " " not in node.value
    }
    assert len(references) > 10
    broken = []
    for reference in sorted(references):
        module, _, name = reference.partition(":")
        if module not in FILES or name not in names_of(FILES[module]):
            broken.append(reference)
    assert not broken
