"""Tables of experiments: what their scripts make of the results on record is what stands beside these."""

from __future__ import annotations

import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from geonorm.report.charts import Figure

from .made import ROOT

TABLES = {
    "007-clamp": ("table.py", "table.md"),
    "008-parts": ("effects.py", "effects.md"),
    "009-tokens": ("../trends.py", "trends.md"),
    "010-size": ("../trends.py", "trends.md"),
    "011-rate": ("table.py", "table.md"),
    "012-depth": ("table.py", "table.md"),
    "013-candidate": ("table.py", "table.md"),
    "014-beyond-decoders": ("table.py", "table.md"),
    "016-streams": ("table.py", "table.md"),
    "018-norms": ("table.py", "table.md"),
    "019-again": ("table.py", "table.md"),
    "020-fields": ("table.py", "table.md"),
    "021-schedule": ("table.py", "table.md"),
}
RECORDS = ("results.jsonl", "traces.csv", "probes.csv", "runs.py")


@pytest.mark.parametrize("experiment", TABLES)
def test_a_table_is_that_of_the_results_on_record(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, table = TABLES[experiment]
    folder = tmp_path / experiment
    (folder / "figures").mkdir(parents=True)
    for name in RECORDS:
        if (ROOT / experiment / name).exists():
            shutil.copy(ROOT / experiment / name, folder)
    drawn: list[Path] = []
    monkeypatch.setattr(Figure, "save", lambda self, path: drawn.append(Path(path)))
    sys.modules.pop("runs", None)  # the plan beside each script, by a name that all have
    runpy.run_path(str(ROOT / experiment / script))["main"](folder)
    assert (folder / table).read_text(encoding="utf-8") == (ROOT / experiment / table).read_text(encoding="utf-8")
    names = {path.name for path in drawn}
    assert names and names <= {path.name for path in (ROOT / experiment / "figures").iterdir()}


@pytest.mark.parametrize("experiment", ["001-placement-on-cpu", "002-geonorm-fields", "003-zoo"])
def test_a_comparison_on_record_has_its_table(experiment: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / experiment / "results.jsonl", tmp_path)
    runpy.run_path(str(ROOT / "collect.py"))["write_table"](tmp_path)
    assert (tmp_path / "table.md").read_text() == (ROOT / experiment / "table.md").read_text()


def test_the_rates_of_017_are_those_of_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command of its README."""
    command = (ROOT / "017-paper-recipe" / "README.md").read_text().partition("experiments/curves.py")[2]
    _, *schemes = shlex.split(command.partition("\n```")[0].replace("\\\n", " ").partition("\npython")[0])
    shutil.copy(ROOT / "017-paper-recipe" / "results.jsonl", tmp_path)
    monkeypatch.setattr(Figure, "save", lambda self, path: path)
    assert runpy.run_path(str(ROOT / "curves.py"))["main"](tmp_path, schemes[0], schemes[1:]) == 0
    assert (tmp_path / "rates.md").read_text() == (ROOT / "017-paper-recipe" / "rates.md").read_text()


def test_the_table_of_015_is_that_of_its_results() -> None:
    script = runpy.run_path(str(ROOT / "015-conversion" / "table.py"))
    text = script["tabulate"](script["read_kept"](ROOT / "015-conversion"))
    assert text == (ROOT / "015-conversion" / "table.md").read_text()
