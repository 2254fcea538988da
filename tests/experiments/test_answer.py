"""The figure that answers the first question is that of the runs on record, and says what docs/results.md says."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest

from .made import ROOT

own: dict[str, Any] = runpy.run_path(str(ROOT / "answer.py"))


@pytest.fixture(scope="module")
def table() -> str:
    return str(own["tabulate"](own["collect"]()))


def test_it_is_made_of_the_runs_on_record(table: str) -> None:
    assert table == (ROOT.parent / "docs" / "figures" / "answer.md").read_text(encoding="utf-8")


def test_results_have_the_same_numbers(table: str) -> None:
    """Of 010, 012, 013, 017, 019 and 021 wherever three pairs or more are compared."""
    told = (ROOT.parent / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if re.search(r"\b0(10|12|13|17|19|21)-", line)]
    wanted = [row[2] for row in rows if int(row[4]) > 2]
    assert len(wanted) > 12 and not [text for text in wanted if text not in told]


def test_a_rate_with_one_seed_is_none_to_compare_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.4 by a single seed at another rate is no best rate; runs without gains are of another recipe."""
    place = own["Place"]("", "ours", "", "books-", 10)
    runs = [
        {"run": f"books-{scheme}-{lr}-{seed}", "scheme": scheme, "lr": lr, "seed": seed, "steps": 10,
         "status": "finished", "val_loss": loss + 0.01 * seed}
        for scheme, lr, seed, loss in (
            ("pre", 0.1, 0, 3.5), ("pre", 0.1, 1, 3.5), ("pre", 0.2, 0, 3.4),
            ("geonorm", 0.1, 0, 3.6), ("geonorm", 0.1, 1, 3.6),
        )
    ]  # fmt: skip
    runs += [{**run, "run": "books-pre-nogains-0.1", "val_loss": 2.0} for run in runs[:2]]
    monkeypatch.setitem(own["compare"].__globals__, "read_runs", lambda _: runs)
    assert own["compare"](place, ("geonorm", "pre")) == pytest.approx({0: 0.1, 1: 0.1})
