"""A comparison with schemes of a notebook or a script, as a user meets it: each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import geonorm
from geonorm.elsewhere import gather_source

from ...rows import each

CELLS = [
    "from dataclasses import dataclass\nfrom math import pi\nimport geonorm, torch\nfrom geonorm import Placement",
    "SHARE = pi / 6\n",
    "def scaled(u):\n    return SHARE * u\n",
    """
@dataclass(frozen=True)
class Half(Placement):
    power: float = 1.0

    def write(self, x, u, p, site, h=1.0):
        result = torch.zeros_like(u)
        return x + h * self.power * scaled(u) + result
""",
]
CALL = """
def study(**more):
    model = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "context": 16, "vocab_size": 257}
    return geonorm.compare(
        [Half(power=2.0)], data="text.txt", model=model, tokens={"tokenizer": "byte"}, seeds=1, jobs=1,
        evaluation={"tokens": 64, "trace_tokens": 0}, runtime={"device": "cpu", "tensorboard": False}, **more
    )

result = study(steps=2)
assert [run.summary.status for run in result.runs] == ["finished"], result
assert study(steps=2).path == result.path != study(steps=1).path
assert list(result.frame()["scheme"]) == ["__main__.Half:Half(power=2)"]
"""
NOTEBOOK = "In = {cells}\nfor cell in In:\n    exec(cell, globals())\n"


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    place = str(Path(geonorm.__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": place, "GEONORM_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True)


@each("text", [NOTEBOOK.format(cells=[*CELLS, CALL]), "\n".join([*CELLS, CALL])])
def test_a_class_of_a_notebook_or_a_script_compares_resumes_and_reports(text: str, tmp_path: Path) -> None:
    """A script calls `compare` without a guard, which its saved source must not do."""
    (tmp_path / "text.txt").write_text("".join(f"line {i} of a short text\n" for i in range(400)))
    (tmp_path / "study.py").write_text(text)
    ended = python(tmp_path, "study.py")
    assert ended.returncode == 0, ended.stderr
    assert "1 of 1 runs are finished already" in ended.stdout and "What limits this comparison" in ended.stdout
    if not text.startswith("In = "):
        return  # the folder is of the same kind
    (first, _) = sorted((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    again = python(tmp_path, "-m", "geonorm", "compare", "--config", str(first / "config.yaml"), "--trust-code")
    assert again.returncode == 0 and "1 of 1 runs are finished already" in again.stdout, again.stderr
    (run,) = (first / "runs").iterdir()
    resumed = python(tmp_path, "-m", "geonorm", "train", "--config", str(run / "config.yaml"), "--trust-code")
    assert resumed.returncode == 0 and "already finished" in resumed.stdout, resumed.stderr
    refused = python(tmp_path, "-m", "geonorm", "compare", "--config", str(first / "config.yaml"))
    assert refused.returncode == 2 and "names code, __main__.Half: read it, then say --trust-code" in refused.stderr


def test_a_class_without_source_says_what_to_do(tmp_path: Path) -> None:
    code = "\n".join([*CELLS, "geonorm.compare([Half()], data='stdlib')"])
    ended = python(tmp_path, "-c", code)
    line = "runs cannot import Half: its source cannot be read here; or write it to a file and give './file.py:Half'"
    assert ended.returncode == 1 and line in ended.stderr and not (tmp_path / "runs").exists()


def test_the_source_of_a_class_is_what_it_needs_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    later = CELLS[1].replace("6", "3")
    text = gather_source("Half", [*CELLS[:2], "%magic", "result = print('never')", *CELLS[2:], later])
    assert text is not None and "pi / 3" in text and "never" not in text and "pi / 6" not in text
    monkeypatch.setitem(sys.modules, "cells", cells := ModuleType("cells"))
    exec(text, vars(cells))  # noqa: S102
    assert cells.scaled(3.0) == cells.pi
    assert gather_source("Third", CELLS) is None
    text = gather_source(
        "Half", ["POWER = 1.0", CELLS[3].replace("power: float = 1.0", "power: float = POWER"), "POWER = 2.0"]
    )
    assert text is not None and text.rstrip().endswith("POWER = 2.0")  # the class has 1.0: this text must not run


def test_the_source_of_a_class_has_what_changes_the_names_that_it_needs() -> None:
    """And no call of what was imported: that would compare again in each of its own runs."""
    changes = """
A = 0.5
A *= 100
T = {}
T["a"] = 1.0
T.update(b=2.0)
for i in range(2): T[i] = 0.0
if A > 1: B = 7.0
C, D = 3.0, "\f"; E = "\u2028"
others = []; others.append(geonorm.names())
class Half:
    numbers = A, dict(T), B, C, D, E
Half.more = 4.0
print("never")
"""
    text = gather_source("Half", ["import geonorm", changes, "geonorm.compare(Half)", "A += 1"])
    assert text is not None and "never" not in text and "others" not in text and "compare" not in text
    exec(text, names := dict[str, Any]())  # noqa: S102
    numbers = 50.0, {"a": 1.0, "b": 2.0, 0: 0.0, 1: 0.0}, 7.0, 3.0, "\f", "\u2028"
    assert names["Half"].numbers == numbers and names["Half"].more == 4.0 and names["A"] == 51.0
