"""The figure that answers the first question is that of the runs on record, and says what docs/results.md says."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from geonorm.report.style import signed

from .made import ROOT, summary

README = (ROOT.parent / "README.md").read_text(encoding="utf-8")
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


def paper(scheme: str, lr: float | None = None) -> list[float]:
    """Differences to the paper's Pre-Norm in 017, by seed."""
    place = replace(own["Place"]("", "paper", "017-paper-recipe", "books-"), lr=lr)
    gaps: Mapping[int, float] = own["compare"](place, (scheme, "pre(entry=embedding)"))
    return list(gaps.values())


def verdict(text: str) -> str:
    """The word for a mean with its interval, by their signs."""
    signs = ["−" if number.startswith("−") else "+" for number in re.findall(r"[−+]?[\d.]+", text)]
    return {"−−−": "better", "+++": "worse"}.get("".join(signs), "not resolved")


def test_the_readme_has_the_numbers_and_verdicts_of_the_runs() -> None:
    """The table row by row: mean and interval, number of pairs or settings, and the first words of the verdict."""
    table = README[README.index("| setting |") :].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    ours, both = own["pool"](own["collect"]()).values()
    wanted = (
        ("paper's recipe and learning rate", paper("geonorm(entry=embedding)", 7.2e-3), "seeds"),
        ("paper's recipe, each at its best rate", paper("geonorm(entry=embedding)"), "seeds"),
        ("the same, GeoNorm keeps its input norms", paper("geonorm(entry=embedding, input=norm)"), "seeds"),
        ("our recipe, best rates", ours, "settings"),
        ("embedding norm in both, best rates", both, "settings"),
    )
    for (setting, word, told, pairs), (label, gaps, of) in zip(rows, wanted, strict=False):
        assert label in setting and (told, pairs) == (own["describe"](gaps)[0], f"{len(gaps)} {of}")
        assert word.partition(";")[0] == verdict(told)
    assert f"GeoNorm is worse ({signed(fmean(paper('geonorm(entry=embedding)', 3.6e-3)))})" in " ".join(README.split())
    lines = (ROOT / "100-paper-125m" / "cut.jsonl").read_text(encoding="utf-8").splitlines()
    curves = [dict(json.loads(line)["course"]) for line in lines]
    assert [json.loads(line)["scheme"].partition("(")[0] for line in lines] == ["pre", "geonorm"]
    last = max(curves[1])
    gap = signed(curves[1][last] - curves[0][last])
    assert "162M" in rows[5][0] and rows[5][1:] == ["far worse when cut", gap, "1 seed"]
    assert f"cut after {last * 64 * 512 / 1e6:.0f}M tokens" in README


def test_no_finished_run_is_above_two_million_parameters() -> None:
    files = [*ROOT.glob("*/results.jsonl")]
    runs = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(runs) > 1000 and max(run.get("parameters") or 0 for run in runs) < 2e6
    assert "No pair of runs above 2M parameters has finished here" in " ".join(README.split())


def test_a_rate_with_one_seed_is_none_to_compare_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.4 by a single seed at another rate is no best rate; runs without gains are of another recipe."""
    place = own["Place"]("", "ours", "", "books-", 10)
    runs = [
        summary(run=f"books-{scheme}-{lr}-{seed}", scheme=scheme, lr=lr, seed=seed, steps=10,
                val_loss=loss + 0.01 * seed)
        for scheme, lr, seed, loss in (
            ("pre", 0.1, 0, 3.5), ("pre", 0.1, 1, 3.5), ("pre", 0.2, 0, 3.4),
            ("geonorm", 0.1, 0, 3.6), ("geonorm", 0.1, 1, 3.6),
        )
    ]  # fmt: skip
    runs += [replace(run, run="books-pre-nogains-0.1", val_loss=2.0) for run in runs[:2]]
    monkeypatch.setitem(own["compare"].__globals__, "read_runs", lambda _: runs)
    assert own["compare"](place, ("geonorm", "pre")) == pytest.approx({0: 0.1, 1: 0.1})
