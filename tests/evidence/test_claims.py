"""Every number, verdict, sentence and figure of evidence is what the runs on record give."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from evidence.check import unregistered
from evidence.claims import ROOT, Evidence

from . import mutate, recompute


def test_every_claim_is_what_its_runs_give() -> None:
    """After a change of runs or claims: `python -m evidence build`."""
    done = subprocess.run([sys.executable, "-m", "evidence", "check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_code_computes_the_same() -> None:
    assert not recompute.differing()


def test_changes_to_the_evidence_are_noticed() -> None:
    """One of each kind; mutate.py makes fifty."""
    outcomes = mutate.run(each=1)
    assert len(outcomes) == 5 and all(line for *_, line in outcomes), outcomes


def test_a_claim_holds_no_results() -> None:
    """A verdict of the closed list, and no decimals but rates."""
    evidence = Evidence()
    assert len(evidence.claims) > 200
    for name, words in evidence.file["claims"].items():
        assert re.fullmatch(r"better|worse|equal within 0\.01|not resolved|one run", words["status"]), name
        numbers = {key for key, value in words.items() if isinstance(value, float)}
        assert numbers <= {"lr"}, name


INTERVAL = re.compile(r"\([+−]?\d*\.\d+ to [+−]?\d*\.\d+\)")
NO_LOSSES = "docs/(theory|performance|probe|scale|ladder|design/0007|generated)|experiments/00[56]"
"""Pages of times and of measurements of models."""
RESULTS = [ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]


def test_no_interval_of_losses_stands_outside_a_claim() -> None:
    for pattern in ("README.md", "docs/**/*.md", "experiments/**/README.md"):
        for page in ROOT.glob(pattern):
            if page in RESULTS or re.search(NO_LOSSES, str(page)):
                continue
            text = re.sub(r"<!-- claim .*?<!-- / -->", "", page.read_text("utf-8"), flags=re.DOTALL)
            assert not INTERVAL.findall(text), page


def test_results_are_plain() -> None:
    """Sentences of 30 words at most, cells of 15, tables of six columns; no interval on a page by hand."""
    for page in RESULTS:
        text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", page.read_text("utf-8"))
        rows = [line for line in text.splitlines() if line.startswith("|")]
        prose = re.sub(r"(?m)^(?:\|.*|<!--.*)$", "\n\n", text)
        sentences = re.split(r"(?<=[.!?])[*)\"]*\s|\n\n|\n *(?=[-#])", prose)
        for limit, parts in ((30, sentences), (15, [cell for row in rows for cell in row.split("|")])):
            long = [part for part in parts if len(re.findall(r"\S*\w\S*", part)) > limit]
            assert not long, (page, long)
        assert all(row.count("|") <= 7 for row in rows), page
        assert "python -m evidence build" in text or not INTERVAL.findall(text), page


def test_a_prediction_after_its_runs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose commit has the runs already; one whose commit there is not."""
    evidence = Evidence()
    monkeypatch.setitem(evidence.file["registered"], "021-schedule", "29326c28")
    monkeypatch.setitem(evidence.file["registered"], "018-norms", "0" * 8)
    names = {line.split()[1].rstrip(":") for line in unregistered(evidence)}
    if (ROOT / ".git").exists() and not (ROOT / ".git/shallow").exists():  # else there is no history
        changed = {f"021-{schedule}-without" for schedule in ("constant", "cosine", "schedule")}
        assert names == changed | {"018-64-pre", "018-64-peri"}


def test_no_finished_run_is_above_two_million_parameters() -> None:
    files = [*(ROOT / "experiments").glob("*/results.jsonl")]
    runs = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    assert len(runs) > 1000 and max(run.get("parameters") or 0 for run in runs) < 2e6
    for page in ("README.md", "docs/results/size.md"):
        assert "above 2M parameters" in Path(ROOT / page).read_text("utf-8")
