"""Settings from a file: they run no code that nobody has typed, whichever setting names it."""

from contextlib import suppress
from contextvars import copy_context
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from geonorm import parse
from geonorm.cli.arguments import read
from geonorm.cli.main import COMMANDS, main
from geonorm.errors import ConfigError, UntrustedCode
from geonorm.settings import bare, choices, from_dict, members, options

RULE = """
from dataclasses import dataclass
from pathlib import Path
from geonorm import Placement
Path("it-ran").touch()

@dataclass(frozen=True)
class Evil(Placement):
    def write(self, x, u, p, site, h=1.0):
        return x + h * 0.5 * u
"""
EVIL = "./stranger/rule_of_one.py:Evil"


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with somebody's folder in it, and a user who has typed nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "rule_of_one.py").write_text(RULE)
    return tmp_path


def file_of(**settings: Any) -> str:
    Path("settings.yaml").write_text(yaml.safe_dump(settings))
    return "settings.yaml"


def texts() -> list[tuple[str, str]]:
    return [
        (command, option.name)
        for command, kind in COMMANDS.items()
        for option in options(kind).values()
        if str in map(bare, members(one_of(option)))
    ]


def one_of(option: Any) -> Any:
    """The type of one value, of a list that of its elements."""
    return get_args(option.hint)[0] if option.many else option.hint


@pytest.mark.parametrize(("command", "name"), texts())
def test_no_text_of_a_file_is_typed(command: str, name: str) -> None:
    """Whatever a command makes of a text: after its file was read, parse runs no place that stands in it."""
    kind = COMMANDS[command]
    option = options(kind)[name]
    value: Any = [EVIL] if option.many else EVIL
    for group in reversed(name.split(".")):
        value = {group: value}
    asked = [o for o in options(kind).values() if o.default is MISSING]
    needed = {o.name: choices(one_of(o))[0] if choices(one_of(o)) else "1" for o in asked}

    def ask() -> None:
        with suppress(ConfigError):  # refused before anything could be made of it
            read(kind, "geonorm", ["--config", file_of(**{**needed, **value})])
            with pytest.raises(UntrustedCode, match=r"settings.yaml names code, ./stranger/rule_of_one.py"):
                parse(EVIL)

    copy_context().run(ask)
    assert not Path("it-ran").exists()


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("compare", {"schemes": ["pre", EVIL], "out": "out"}),
        ("ladder", {"schemes": [f"mix({EVIL}, pre)"], "out": "out"}),
        ("eval", {"model": ".", "data": "stdlib", "scheme": EVIL}),
        ("schemes", {"name": EVIL}),
    ],
)
def test_a_scheme_of_a_file_is_refused(command: str, settings: dict[str, Any], capsys: Any) -> None:
    assert main([*command.split(), "--config", file_of(**settings)]) == 2
    err = capsys.readouterr().err
    assert "settings.yaml names code, ./stranger/rule_of_one.py" in err and len(err.splitlines()) == 1
    assert not Path("it-ran").exists() and not Path("out").exists()


def test_what_stands_on_the_command_line_is_typed() -> None:
    assert main(["schemes", f"mix(post, {EVIL})", "--config", file_of(json=True)]) == 0
    assert Path("it-ran").exists()
    Path("stranger/rule_of_one.py").write_text(RULE.replace("0.5", "0.75"))
    assert main(["schemes", "--config", file_of(name=EVIL)]) == 2
    assert main(["schemes", "--config", file_of(name=EVIL), "--out", f"x{EVIL}"]) == 2  # that is another place
    assert main(["schemes", "--config", file_of(name=EVIL), "--trust-code"]) == 0


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        ("probe", {"models": ["model"], "trust_remote_code": True}, ["--trust-remote-code"]),
        ("compare", {"launcher": "submitit", "slurm": {"setup": "x", "time": 60}}, ["--slurm.setup", "x"]),
        ("ladder", {"launcher": "submitit", "slurm": {"options": ["wrap=x"]}}, ["--slurm.options", "wrap=x"]),
        ("compare", {"launcher": "ray", "ray": {"address": "ray://x:1"}}, ["--ray.address", "ray://x:1"]),
    ],
)
def test_a_file_does_not_start_what_runs_code(command: str, settings: dict[str, Any], said: list[str]) -> None:
    kind, words = COMMANDS[command], ["--config", file_of(**settings)]
    with pytest.raises(ConfigError, match=rf"settings.yaml would run code: say {said[0]} on the command line"):
        read(kind, "geonorm", words)
    assert read(kind, "geonorm", [*words, *said]) == from_dict(kind, settings, typed=True)
    assert read(kind, "geonorm", [*words, *said, "--out=~/x"]).out == str(Path.home() / "x")


def test_another_launcher_goes_on_with_the_settings_of_one() -> None:
    file = file_of(launcher="submitit", slurm={"time": 60}, ray={"gpus": 2})
    kind = COMMANDS["compare"]
    config = read(kind, "geonorm", ["--config", file, "--launcher", "local"])
    assert (config.launcher, config.slurm.time, config.ray.gpus) == ("local", 60, 2)
    with pytest.raises(ConfigError, match=r"^--slurm.time does nothing here, it needs --launcher submitit: "):
        read(kind, "geonorm", ["--config", file, "--launcher", "local", "--slurm.time", "60"])
