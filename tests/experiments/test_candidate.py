"""How experiment 013 chooses a candidate and judges it, on planted numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .made import table_of


def test_tables_of_013_choose_and_judge(tmp_path: Path) -> None:
    """Planted: decay=sqrt lowest of the variants; with fresh seeds all six rivals end 0.1 above it at equal tokens,
    `keel` 0.01, which is below it at equal time. Without the last run of one
    nothing is found. Runs that chose a rate are not among those that judge."""
    rows: list[dict[str, Any]] = []
    unit, best = "geonorm(update=unit)", "geonorm(update=unit, decay=sqrt)"  # as runs have them, in any order

    def add(kind: str, scheme: str, lr: float, seed: int, loss: float) -> None:
        rows.append(
            {"run": f"{kind}-{scheme}-lr{lr:g}-seed{seed}", "scheme": scheme, "lr": lr, "seed": seed,
             "status": "finished", "val_loss": loss, "val_loss_average": None}
        )  # fmt: skip

    for scheme, plus in (("pre", 0.2), (unit, 0.1), (best, 0.0)):
        for lr, seed, more in ((3e-3, 0, 0.1), (6e-3, 0, 0.0), (6e-3, 1, 0.01), (1.2e-2, 0, 0.1)):
            add("select" if scheme == best else "plain", scheme, lr, seed, 3 + plus * (1 + 0.1 * seed) + more)
    known, own = [row for row in rows if row["scheme"] != best], [row for row in rows if row["scheme"] == best]
    rows = own
    rivals = ("pre", "keel", "geonorm", "pre(entry=embedding)", "peri", "deepnorm")
    for scheme, plus in ((best, 0.0), *((rival, 0.1) for rival in rivals)):
        add("confirm", scheme, 6e-3, 0, 2.0)
        for seed in range(10, 20):
            add("confirm", scheme, 6e-3, seed, 3 + plus * (1 + 0.01 * seed) + 0.01 * seed)
    for seed in range(10, 20):
        add("equal-confirm", best, 6e-3, seed, 3.05 + 0.01 * seed)
    for row in rows:
        if row["scheme"] == "keel" and row["seed"]:
            row["val_loss"] -= 0.101
    for folder, some in (("other", known), ("own", rows)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    table_of("013-candidate")["main"](tmp_path / "own", tmp_path / "other")
    text = (tmp_path / "own" / "table.md").read_text()
    candidates = text[text.index("## Candidates") :].splitlines()[4:6]
    assert [line.split(" | ")[0] for line in candidates] == ["| pi/4 / √t", "| pi/4 / t"]
    tokens = text[text.index("## equal tokens") : text.index("## equal time")].splitlines()
    assert tokens[4].startswith("| pi/4 / √t | 10 | 3.145") and len(tokens) == 12
    p, adjusted = map(float, next(line for line in tokens if line.startswith("| pre ")).split(" | ")[4].split(", "))
    assert adjusted == pytest.approx(6 * p, rel=0.2)  # of six rivals, and not of those of both tables
    assert "At equal time: not found (keel: not above it with p < 0.01)." in text
    assert "At equal tokens: found." in text
    for row in rows:
        row["val_loss"] += 0.2 * (row["scheme"] == "keel")
    (tmp_path / "own" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table_of("013-candidate")["main"](tmp_path / "own", tmp_path / "other")
    text = (tmp_path / "own" / "table.md").read_text()
    assert "At equal time: found." in text
    missing = [row for row in rows if (row["scheme"], row["seed"]) != ("peri", 19)]
    (tmp_path / "own" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in missing))
    table_of("013-candidate")["main"](tmp_path / "own", tmp_path / "other")
    said = (tmp_path / "own" / "table.md").read_text()
    assert "At equal tokens: not found (peri: 9 of 10 pairs yet)." in said
    assert "confirmation" in (tmp_path / "own" / "figures" / "rates.svg").read_text()


@pytest.mark.parametrize(
    ("which", "said"),
    [("peri", "At equal tokens: found."), ("geonorm(update=unit, decay=sqrt)", "1 of the candidate's runs diverged")],
)
def test_a_run_of_013_that_diverges_counts_against_its_own_scheme(which: str, said: str) -> None:
    """A rival's is above the candidate, and the other nine pairs are judged; the candidate's is none."""
    made = table_of("013-candidate")
    runs = [
        {"run": f"confirm-{scheme}-{seed}", "scheme": scheme, "lr": 6e-3, "seed": seed, "val_loss": 3 + plus,
         "status": "diverged" if (scheme, seed) == (which, 12) else "finished"}
        for scheme, start in (("geonorm(update=unit, decay=sqrt)", 0.0), *((rival, 0.1) for rival in made["AGAINST"]))
        for seed, plus in ((seed, start + 0.001 * (seed * len(scheme) % 7)) for seed in range(10, 20))
    ]  # fmt: skip
    assert said in made["conclude"]({"equal tokens": made["judge"]({"": runs})[""]})
