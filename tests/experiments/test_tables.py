"""Tables that scripts of experiments make are those of the results on record."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest

from geonorm.report.charts import Figure

from .made import ROOT


@pytest.mark.parametrize(
    ("experiment", "script", "table"),
    [("008-parts", "effects.py", "effects.md"), ("020-fields", "table.py", "table.md")],
)
def test_a_table_is_that_of_the_results(
    experiment: str, script: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("results.jsonl", "traces.csv"):
        shutil.copy(ROOT / experiment / name, tmp_path)
    (tmp_path / "figures").mkdir()
    drawn: list[Path] = []
    monkeypatch.setattr(Figure, "save", lambda self, path: drawn.append(Path(path)))
    sys.modules.pop("runs", None)  # the plan beside each script, by a name that all have
    runpy.run_path(str(ROOT / experiment / script))["main"](tmp_path)
    assert (tmp_path / table).read_text(encoding="utf-8") == (ROOT / experiment / table).read_text(encoding="utf-8")
    assert drawn and {path.name for path in drawn} <= {path.name for path in (ROOT / experiment / "figures").iterdir()}


@pytest.mark.parametrize(("experiment", "start"), [("012-depth", ""), ("017-paper-recipe", "books-")])
def test_spikes_are_those_of_the_runs(experiment: str, start: str) -> None:
    script = runpy.run_path(str(ROOT / "spikes.py"))
    lines = script["tabulate"](script["read_known"](ROOT / experiment, start))
    assert (ROOT / experiment / "spikes.md").read_text() == "\n".join(lines) + "\n"
