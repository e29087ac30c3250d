"""Settings: one file, dotted overrides, errors that name key, value and origin, and a faithful way back to TOML."""

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, JsonValue, ValidationError, model_validator

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.settings import Settings, dump_toml, load_settings


class Loss(Settings):
    clip: float = Field(0.2, gt=0, description="how far the ratio\nmay go")
    kind: Literal["token", "turn"] = "token"


class Learner(Settings):
    lr: float = Field(6e-4, gt=0, description="AdamW's rate")
    betas: tuple[float, float] = (0.9, 0.95)
    loss: Loss = Loss()
    schedule: str = "constant"
    total: int | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Learner":
        if self.schedule == "cosine" and self.total is None:
            raise ValueError("schedule = 'cosine' needs total")
        return self


class Config(Settings):
    learner: Learner = Field(default_factory=Learner, description="the learner")
    name: str = "run"
    folder: Path = Path("runs")
    seed: int = 0
    exact: bool = False
    options: dict[str, Any] = Field(default_factory=dict)
    tags: list[str] = Field(default_factory=list)
    limit: int | None = None


class WithRequired(Settings):
    id: str
    other: Config = Config()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('name = "from file"\nseed = 3\n[learner]\nlr = 0.5\n[learner.loss]\nkind = "turn"\n')
    return path


def test_a_file_lies_over_the_defaults_and_overrides_over_the_file(file: Path) -> None:
    assert load_settings(Config) == Config()
    config = load_settings(Config, file, ["seed=4", "learner.loss.clip=0.1", "learner.total=9"])
    assert (config.name, config.seed, config.learner.lr) == ("from file", 4, 0.5)
    assert config.learner.loss == Loss(clip=0.1, kind="turn")
    assert config.learner.total == 9


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("seed=7", "seed", 7),
        ("exact=true", "exact", True),
        ("name=code-repair", "name", "code-repair"),
        ("name=two words", "name", "two words"),
        ('name="3"', "name", "3"),
        ("name=3", "name", "3"),
        ("name=2026-01-01", "name", "2026-01-01"),
        ("name=a=b", "name", "a=b"),
        ('name=""', "name", ""),
        ("name=", "name", "run"),
        ("name=1\nseed = 5", "name", "1\nseed = 5"),
        ("folder=/data/runs", "folder", Path("/data/runs")),
        ('tags=["a", "b"]', "tags", ["a", "b"]),
        ("limit=5", "limit", 5),
        ("options.depth=2", "options", {"depth": 2}),
        ("options.a.b=[1, 2.5]", "options", {"a": {"b": [1, 2.5]}}),
        ('options."a b"=x', "options", {"a b": "x"}),
        ("options={a = 1}", "options", {"a": 1}),
        (" seed = 8 ", "seed", 8),
    ],
)
def test_override_values(override: str, name: str, value: object) -> None:
    assert getattr(load_settings(Config, None, [override]), name) == value


def test_the_last_override_wins_and_an_empty_one_restores_the_default(file: Path) -> None:
    assert load_settings(Config, file, ["seed=1", "seed=2"]).seed == 2
    assert load_settings(Config, file, ["learner.lr="]).learner.lr == 6e-4
    assert load_settings(Config, file, ["learner="]).learner == Learner()


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["sed=3"], "override 'sed=3': unknown key 'sed'; did you mean 'seed'?"),
        (["lerner.lr=3"], "unknown key 'lerner'; did you mean 'learner'?"),
        (["learner.lrr=3"], "override 'learner.lrr=3': unknown key 'learner.lrr'; did you mean 'lr'?"),
        (["learner.loss.klip=3"], "unknown key 'learner.loss.klip'; did you mean 'clip'?"),
        (["learner.loss.zzz=3"], "unknown key 'learner.loss.zzz'; known: clip, kind"),
        (["learner.lr=fast"], "override 'learner.lr=fast': 'learner.lr' should be a valid number"),
        (["learner.lr=fast"], "got 'fast'"),
        (["learner.lr=-1"], "'learner.lr' should be greater than 0, got -1"),
        (["learner.loss.kind=tok"], "'learner.loss.kind' should be 'token' or 'turn', got 'tok'"),
        (["learner.schedule=cosine"], "override 'learner.schedule=cosine': 'learner' schedule = 'cosine' needs total"),
        (["learner.betas=[0.9]"], "'learner.betas.1'"),
        (["seed=1.5"], "'seed' should be a valid integer"),
        (["seed.a=1", "seed.b=2"], "'seed' should be a valid integer"),
        (["seed=1", "seed.a=2"], "override 'seed.a=2': seed is 1 and has no keys of its own"),
        (["seed"], "override 'seed' is not of the form key.subkey=value"),
        (["=3"], "override '=3' is not of the form"),
        (["a..b=3"], "override 'a..b=3' is not of the form"),
        (["a b=3"], "override 'a b=3' is not of the form"),
        (["sed=3", "nam=x"], "unknown key 'sed'; did you mean 'seed'?; override 'nam=x': unknown key 'nam'"),
        ([f"x{i}=0" for i in range(9)], "; and 4 more"),
    ],
)
def test_wrong_overrides(overrides: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(Config, None, overrides)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("sed = 3\n", "{file}: unknown key 'sed'; did you mean 'seed'?"),
        ("[learner]\nlr = 'fast'\n", "{file}: 'learner.lr' should be a valid number, unable to parse"),
        ("learner = 3\n", "{file}: 'learner' should be a valid dictionary"),
        ("seed = \n", "{file}: not valid TOML: Invalid value (at line 1, column 8)"),
        ("[learner]\nschedule = 'cosine'\n", "{file}: 'learner' schedule = 'cosine' needs total"),
        ("name = '\xff'".encode("latin-1"), "{file}: not valid TOML"),
    ],
)
def test_wrong_files(tmp_path: Path, content: str | bytes, complaint: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        load_settings(Config, path)
    assert complaint.replace("{file}", str(path)) in str(caught.value)


def test_missing_things(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_settings(Config, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="configuration: 'id' is missing"):
        load_settings(WithRequired)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().seed = 1  # type: ignore[misc]


def test_the_written_form() -> None:
    text = dump_toml(load_settings(Config, None, ["options.a.b=[1,true]", "name=x\ty"]))
    assert text == (
        'name = "x\\ty"\n'
        'folder = "runs"\n'
        "seed = 0\n"
        "exact = false\n"
        "options = { a = { b = [1, true] } }\n"
        "tags = []\n"
        "# limit is not set\n"
        "\n"
        "[learner]  # the learner\n"
        "lr = 0.0006  # AdamW's rate\n"
        "betas = [0.9, 0.95]\n"
        'schedule = "constant"\n'
        "# total is not set\n"
        "\n"
        "[learner.loss]\n"
        "clip = 0.2  # how far the ratio may go\n"
        'kind = "token"\n'
    )


def test_a_none_that_toml_cannot_say_is_refused() -> None:
    class Bad(Settings):
        limit: int | None = 3

    class Outer(Settings):
        bad: Bad = Bad()
        options: dict[str, Any] = Field(default_factory=dict)

    with pytest.raises(ConfigError, match=r"bad\.limit is None, which TOML cannot say"):
        dump_toml(Outer(bad=Bad(limit=None)))
    with pytest.raises(ConfigError, match=r"options\.a\.b holds None, which TOML cannot say"):
        dump_toml(Outer(options={"a": {"b": None}}))


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
CONFIGS = st.builds(
    Config,
    name=TEXT,
    seed=st.integers(),
    options=st.dictionaries(TEXT, VALUES, max_size=4),
    tags=st.lists(TEXT, max_size=3),
    learner=st.builds(Learner, lr=st.floats(min_value=0, exclude_min=True), total=st.none() | st.integers()),
)


@settings(max_examples=50)
@given(CONFIGS)
def test_what_is_written_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_text(dump_toml(config), encoding="utf-8", newline="")
    assert load_settings(Config, path) == config


@given(VALUES)
def test_any_value_can_be_given_as_an_override(value: JsonValue) -> None:
    line = dump_toml(Config(options={"x": value})).split("\n")[4]
    written = tomllib.loads(line)["options"]["x"]
    assert line.startswith("options = { x = ")
    raw = line.removeprefix("options = { x = ").removesuffix(" }")
    assert load_settings(Config, None, [f"options.x={raw}"]).options["x"] == written == value


@given(st.lists(st.text(), max_size=3))
def test_any_override_is_taken_or_refused(overrides: list[str]) -> None:
    try:
        load_settings(Config, None, overrides)
    except ConfigError as error:
        assert str(error)
