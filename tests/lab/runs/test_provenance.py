"""A run knows what it was made from: other data, another tokenizer or scheme is refused, other versions are said."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from geonorm import elsewhere
from geonorm.lab.data.tokenizer import BYTE_JSON
from geonorm.lab.load import read_run
from geonorm.lab.runs import environment

from ..conftest import without
from ..train.test_lengths import contents

RULE = """
from dataclasses import dataclass
from geonorm import Placement

@dataclass(frozen=True)
class Half(Placement):
    parts = {"input": "norm"}

    def write(self, x, u, p, site, h=1.0):
        return x + h * 0.5 * u
"""


def test_a_repository_around_the_environment_is_not_that_of_the_package(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    for folder in ("lib/geonorm", "src"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "code.py").write_text("x = 1\n")
    git("init", "-q")
    git("add", "src")
    git("commit", "-q", "-m", "mine")
    assert environment.commit(tmp_path / "lib" / "geonorm") is None
    assert len(environment.commit(tmp_path / "src") or "") == 40


@pytest.fixture
def own(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, not on Python's path, with a text, a tokenizer and a scheme that may be edited."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(text.read_text())
    (tmp_path / "tokenizer.json").write_text(BYTE_JSON)
    (tmp_path / "half_rule.py").write_text(RULE)
    return tmp_path


OPTIONS = ["--data", "text.txt", "--tokens.tokenizer", "tokenizer.json", "--scheme", "./half_rule.py:Half"]


def edit(path: Path, old: str, new: str) -> None:
    before = path.stat()
    path.write_text(path.read_text().replace(old, new, 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "old", "new", "said", "finished"),
    [
        ("text.txt", "the", "teh", "was made with data_sha256 ", False),
        ("tokenizer.json", '"a": 97, "b": 98', '"a": 98, "b": 97', "was made with tokenizer_sha256 ", False),
        ("half_rule.py", "0.5", "5.0", "was made with source of ./half_rule.py ", True),
    ],
)
def test_other_inputs_are_refused(
    name: str, old: str, new: str, said: str, finished: bool, train: Any, own: Path
) -> None:
    assert train(own / "run", "--steps", 2, *OPTIONS).status == 0
    if not finished:
        (own / "run" / "summary.json").unlink()
    before = contents(own / "run")
    edit(own / name, old, new)  # of the tokenizer two bytes change places: a valid one that reads otherwise
    refused = train(own / "run", "--steps", 2, *OPTIONS)
    assert refused.status == 2 and refused.out == "" and len(refused.err.splitlines()) == 1
    assert said in refused.err and "put it back, or choose another --out" in refused.err
    assert contents(own / "run") == before
    assert train(own / "new", "--steps", 2, *OPTIONS).status == 0  # what changed is fine elsewhere


def test_a_scheme_that_failed_may_be_mended(call: Any, tiny: list[str], own: Path) -> None:
    """What has made no step holds nothing that another source would have made otherwise; what is finished stays."""
    edit(own / "half_rule.py", "x + ", "undefined + ")
    words = ["compare", *tiny, "--schemes", "pre", "./half_rule.py:Half", "--steps", 1, "--seeds", 1, "--out", "out"]
    assert call(*words).status == 2
    edit(own / "half_rule.py", "undefined + ", "x + ")
    again = call(*words)
    assert again.status == 0, again.err


def test_a_comparison_is_not_extended_with_other_data(call: Any, tiny: list[str], own: Path) -> None:
    options = ["--data", "text.txt", "--schemes", "pre", "--steps", 1, "--out", "out"]
    words = ["compare", *without(tiny, ["--data"]), *options]
    assert call(*words, "--seeds", 1).status == 0
    edit(own / "text.txt", "the", "teh")
    before = contents(own / "out")
    assert "was made with data_sha256" in call(*words, "--seeds", 2).err and contents(own / "out") == before


def test_what_is_another_in_a_part_is_said(train: Any, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = own / "run"
    assert train(run, "--steps", 2, *OPTIONS).status == 0
    monkeypatch.setenv("GEONORM_BACKEND", "reference")
    for changed in (True, False):
        (run / "summary.json").unlink()
        again = train(run, "--steps", 2, *OPTIONS)
        line = "was begun with something else: backend auto is now reference"
        assert again.status == 0 and (line in again.out) == changed
    found = json.loads((run / "environment.json").read_text())
    assert [(part["backend"], part["step"]) for part in found] == [("auto", 0), ("reference", 2), ("reference", 2)]
    assert read_run(run).environment == found
    (run / "environment.json").write_text(json.dumps([*found, {**found[-1], "python": "3\ntouch x\33[2J"}]))
    (run / "summary.json").unlink()
    assert r"python 3\ntouch x\x1b[2J is now" in train(run, "--steps", 2, *OPTIONS).out


def test_readers_use_the_source_of_the_run(train: Any, call: Any, own: Path) -> None:
    run = own / "run"
    assert train(run, "--steps", 2, *OPTIONS).status == 0
    first = json.loads(call("eval", run, "--data", "text.txt", "--trust-code").out)["loss"]
    text = call("generate", run, "--prompt", "the", "--tokens", 4, "--temperature", 0, "--trust-code").out
    edit(own / "half_rule.py", "0.5", "5.0")
    elsewhere.say.cache_clear()
    found = call("eval", run, "--data", "text.txt", "--trust-code")
    said = f"./half_rule.py has changed since {run} was made; the source that is kept there is used\n"
    assert json.loads(found.out)["loss"] == first and found.err == said
    (own / "half_rule.py").unlink()
    assert call("generate", run, "--prompt", "the", "--tokens", 4, "--temperature", 0, "--trust-code").out == text
    kept = next((run / "schemes").rglob("*.py"))
    kept.write_text(kept.read_text().replace("0.5", "5.0"))
    damaged = call("eval", run, "--data", "text.txt", "--trust-code")
    assert damaged.status == 2 and "does not hold the source of ./half_rule.py" in damaged.err


def test_settings_from_a_file_run_no_code_of_a_stranger(train: Any, call: Any, own: Path) -> None:
    """Another user gets a run: neither its settings nor the run itself execute anything until this user says so."""
    run = own / "run"
    assert train(run, "--steps", 2, *OPTIONS).status == 0
    elsewhere.MODULES.clear()
    before = contents(run)
    for words in (["train", "--config", run / "config.yaml"], ["eval", run, "--data", "text.txt"], ["generate", run],
                  ["export", run, "--to", "model"], ["probe", run, "--out", "found"]):  # fmt: skip
        refused = call(*words)
        assert refused.status == 2 and refused.out == "" and len(refused.err.splitlines()) == 1, words
        assert "names code, ./half_rule.py: " in refused.err and "--trust-code" in refused.err
    assert contents(run) == before and not (own / "model").exists() and not (own / "found").exists()
    allowed = call("eval", run, "--data", "text.txt", "--trust-code")
    assert allowed.status == 0 and allowed.err == ""
    edit(own / "half_rule.py", "0.5", "5.0")
    for name, source in (("copied", ""), ("configs", None)):  # there a comparison puts settings, and never sources
        folder = shutil.copytree(run, own / name)
        (folder / "schemes" / "__main__.Half.py").touch()
        assert elsewhere.source_beside(str(folder / "config.yaml"), "__main__.Half") == source
        elsewhere.say.cache_clear()
        told = call("train", "--config", folder / "config.yaml", "--out", own / f"{name}-2", "--trust-code").err
        assert ("the source that is kept there is used" in told) == (source is not None), told
