"""Every number, verdict, sentence and figure of evidence is what the runs on record give."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

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


def test_tables_have_six_columns_at_most() -> None:
    for page in [*(ROOT / "docs" / "results").glob("*.md"), ROOT / "docs" / "results.md"]:
        heads = re.findall(r"^(\|.*\|)\n\|[ -]*-", page.read_text("utf-8"), re.MULTILINE)
        assert all(head.count("|") <= 7 for head in heads), page
        assert heads


def test_no_finished_run_is_above_two_million_parameters() -> None:
    files = [*(ROOT / "experiments").glob("*/results.jsonl")]
    runs = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    assert len(runs) > 1000 and max(run.get("parameters") or 0 for run in runs) < 2e6
    for page in ("README.md", "docs/results/size.md"):
        assert "above 2M parameters" in Path(ROOT / page).read_text("utf-8")
