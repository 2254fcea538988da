"""Tables that scripts of experiments make are those of the results on record."""

from __future__ import annotations

import runpy

import pytest

from .made import ROOT


@pytest.mark.parametrize(("experiment", "start"), [("012-depth", ""), ("017-paper-recipe", "books-")])
def test_spikes_are_those_of_the_runs(experiment: str, start: str) -> None:
    script = runpy.run_path(str(ROOT / "spikes.py"))
    lines = script["tabulate"](script["read_known"](ROOT / experiment, start))
    assert (ROOT / experiment / "spikes.md").read_text() == "\n".join(lines) + "\n"
