"""What the documents tell people to run, runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from geonorm import parse
from geonorm.arguments import read
from geonorm.lab.config import CompareConfig
from geonorm.simulation import SimulateConfig

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = [  # those of 005 and 006 call the lab from Python: one factor of the model at a time is no comparison
    path for path in sorted((ROOT / "experiments").glob("*/run.sh")) if "geonorm " in path.read_text(encoding="utf-8")
]


def commands_of(text: str, verb: str) -> list[list[str]]:
    """Arguments of every `geonorm VERB` command of a text, shell variables left as words."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = re.findall(rf"(?:^|-m )geonorm {verb} +(--[^\n]*)", joined, re.MULTILINE)
    return [[word for word in shlex.split(line) if word != "$@"] for line in lines]


def test_the_python_of_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)


@pytest.mark.parametrize("text", [README, *(script.read_text(encoding="utf-8") for script in SCRIPTS)])
def test_commands_are_valid(text: str) -> None:
    found = 0
    kinds: list[tuple[str, Any]] = [("compare", CompareConfig), ("simulate", SimulateConfig)]
    for verb, kind in kinds:
        for arguments in commands_of(text, verb):
            config = read(kind, f"geonorm {verb}", arguments)
            found += 1
            for scheme in config.schemes:
                parse(scheme)
    assert found


def test_links_point_at_files() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", prose):
        assert (ROOT / target).exists(), target


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
