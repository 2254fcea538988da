"""What the documents tell people to run, runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from geonorm import parse
from geonorm.arguments import read
from geonorm.lab.config import CompareConfig

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = sorted((ROOT / "experiments").glob("*/run.sh"))


def compare_commands(text: str) -> list[list[str]]:
    """Arguments of every `geonorm compare` command of a text, shell variables left as words."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = re.findall(r"(?:^|-m )geonorm compare +(--[^\n]*)", joined, re.MULTILINE)
    return [[word for word in shlex.split(line) if word != "$@"] for line in lines]


def test_the_python_of_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)


@pytest.mark.parametrize("text", [README, *(script.read_text(encoding="utf-8") for script in SCRIPTS)])
def test_compare_commands_are_valid(text: str) -> None:
    commands = compare_commands(text)
    assert commands
    for arguments in commands:
        config = read(CompareConfig, "geonorm compare", arguments)
        for scheme in config.schemes:
            parse(scheme)


def test_links_point_at_files() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", prose):
        assert (ROOT / target).exists(), target


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
