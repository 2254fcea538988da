"""What experiments compute of their results beyond tables of rows: effects, trends, differences; planted numbers."""

from __future__ import annotations

import json
import random
import runpy
import sys
from itertools import product
from pathlib import Path

import pytest

from geonorm.lab.runs.records import Summary

from .made import ROOT, summary, table_of

PARAMETERS = {"48": 182_000, "64": 329_000, "96": 865_000}

"""By width, of those of 010."""


def test_effects_of_020_are_means_over_rates_under_a_common_spread(tmp_path: Path) -> None:
    """Planted: input=norm 0.1 below the rule at one rate and 0.02 above it at the other; seeds differ by 0.01 in every
    pair, so that all spreads agree and are pooled: 3 degrees of freedom of a variance of 5e-5, of which differences
    to one baseline have 1 / (1 + 2/4). Fields are named as the plan names them."""
    rows, traces = [], ["run,step,clamped"]
    for scheme, at in (
        ("geonorm(entry=embedding)", (0.0, 0.0)),
        ("geonorm(entry=embedding, input=norm)", (-0.1, 0.02)),
        ("geonorm(entry=embedding, alpha=2)", (0.3, 0.3)),
        ("geonorm(entry=sphere)", (0.0, 0.0)),
    ):
        for lr, plus in zip((6e-3, 1.2e-2), at, strict=True):
            for seed in (0, 1):
                loss = 4 + plus + 0.5 * seed + (0.01 * seed if scheme != "geonorm(entry=embedding)" else 0.0)
                name = f"{len(rows)}-lr{lr:g}-seed{seed}"
                rows.append(
                    {"run": name, "scheme": scheme, "lr": lr, "seed": seed, "status": "finished", "val_loss": loss}
                )
                traces += [f"{name},{step},{share}" for step, share in ((1, 1.0), (2, 0.4), (2, 0.6))]
    for lr, status in ((6e-3, "finished"), (1.2e-2, "diverged")):  # at one rate alone it has no effect over both
        rows += [{**rows[0], "run": f"constant-{lr}-{seed}", "scheme": "geonorm(entry=embedding, decay=constant)",
                  "lr": lr, "seed": seed, "status": status} for seed in (0, 1)]  # fmt: skip
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "traces.csv").write_text("\n".join(traces) + "\n")
    made = table_of("020-fields")
    made["main"](tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "4.2500 at 6e-3, 4.2500 at 1.2e-2; 50% of the site-tokens clamped" in text
    assert (
        "| `input=norm` | −0.095, 2 | +0.025, 2 | −0.035 (" in text and "| `alpha=2` | +0.305, 2 | +0.305, 2 |" in text
    )
    assert next(line for line in text.splitlines() if "decay=constant" in line).endswith("| – | – | – | – | 2 |")
    effects = {
        effect.field: effect.found for effect in made["judge"](made["read_pairs"](list(map(Summary.read, rows))))
    }
    assert len(effects) == 19 and effects["decay=constant"] is None
    assert effects["input=norm"].df == pytest.approx(2) and effects["input=norm"].error == pytest.approx(
        (5e-5 / 2) ** 0.5
    )
    assert effects["entry=sphere"].difference == pytest.approx(0.005)
    assert (tmp_path / "figures" / "fields.svg").exists()


def test_effects_of_008_are_those_that_were_planted(tmp_path: Path) -> None:
    """Tangential 0.1 above add, constant 0.2 above harmonic, and 0.04 more for the two together; a ceiling takes 0.03
    off. Noise of 0.005 between runs, none of it an effect of its own; one run diverged."""
    sys.modules.pop("runs", None)
    made = runpy.run_path(str(ROOT / "008-parts" / "effects.py"))
    draw = random.Random(0)
    rows = []
    for write, decay, ceiling, lr, seed in product(
        made["WRITES"], made["DECAYS"], made["CEILINGS"], made["RATES"], (0, 1)
    ):
        both = write == "tangent" and decay == "constant"
        loss = (
            3 + 0.1 * (write == "tangent") + 0.2 * (decay == "constant") + 0.04 * both - 0.03 * (ceiling == "ceiling")
        )
        lost = (write, decay, lr, seed) == ("add", "sqrt", 3e-3, 1)
        rows.append(
            {"run": f"{write}-{decay}-{ceiling}-lr{lr:g}-seed{seed}", "lr": lr,
             "scheme": made["name_cell"](write, decay, ceiling),
             "seed": seed, "status": "diverged" if lost else "finished", "grad_spikes": 3,
             "val_loss": None if lost else loss + draw.gauss(0, 0.005)}
        )  # fmt: skip
    rows.append({**rows[0], "run": "lns", "scheme": "lns", "val_loss": 3.5})
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made["main"](tmp_path)
    text = (tmp_path / "effects.md").read_text()
    assert text.startswith("126 runs of the crossed cells.")
    named = text.partition("Left out, as they diverged or end more than 0.5 above the lowest: ")[2].partition("\n")[0]
    assert "pre(entry=sphere, decay=sqrt, max_step=pi/4)` at 3e-3, seed 1 (diverged)" in named
    assert named.count(";") == 1 and "normalise − geodesic" in text
    cells = [(cell, run) for cell, run in made["read_cells"](list(map(Summary.read, rows))) if run.val_loss is not None]
    fit = made["Fit"]([cell for cell, _ in cells], [run.val_loss for _, run in cells])
    expected = {
        ("write", "tangent"): 0.11,
        ("write", "geodesic"): 0,
        ("decay", "constant"): 0.21,
        ("ceiling", "ceiling"): -0.03,
    }
    for (factor, level), value in expected.items():
        found = fit.effect(factor, level)
        width = found.high - found.low  # four standard errors
        assert abs(found.value - value) < width and width < 0.011, (factor, level)
    together = fit.interaction(("write", "decay"), ("tangent", "constant"))
    assert together.low < 0.04 < together.high and together.p < 1e-6
    assert fit.test(("write", "decay")) < 1e-6 and fit.test(("decay", "ceiling")) > 0.01
    assert (
        "| write x decay |" in text and "| – | tangent, constant | +0.03" in text and "| `lns` | 3.5000 | – |" in text
    )
    assert (tmp_path / "figures" / "cells.svg").exists()
    with pytest.raises(SystemExit, match="no run has add, linear; "):
        made["Fit"]([cell for cell, _ in cells if cell["decay"] != "linear"], [0.0] * 94)
    grid = runpy.run_path(str(ROOT / "008-parts" / "runs.py"))["plan"]({})
    planned = [summary(scheme=w[w.index("--scheme") + 1], lr=float(w[w.index("--lr") + 1])) for w in grid.values()]
    places = [cell for cell, _ in made["read_cells"](planned)]
    for row in rows:  # Post-Norm as it is learns nothing: a mean over decays would not be one of it
        if row["scheme"].startswith("post") and "decay=constant" in row["scheme"]:
            row["val_loss"] = 5.9
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made["main"](tmp_path)
    text = (tmp_path / "effects.md").read_text()
    assert "every write learns: sqrt, harmonic, linear." in text and "| decay | constant" not in text
    assert text.count("(5.90 nats)") == 8 and "| write | tangent − add | +0.09" in text.replace("+0.10", "+0.09")
    assert len(places) == 32 + 28 + 4 and made["Fit"](places, [0.0] * 64).df == 64 - 31  # what is planned is enough


def test_the_schedule_of_a_run_is_told_over_its_training(tmp_path: Path) -> None:
    """Planted: from the second block on the MLP's steps fall as t^-1 at first and grow as t^0.5 at the end, attention's
    are level; the first block is anything. Another scheme, a run that diverged and one of Muon are left out."""
    experiment, traces = tmp_path / "016", ["run,step,stack,layer,kind,angle"]
    experiment.mkdir()
    rows = []
    for run, scheme, status in (
        ("plain-pre", "pre", "finished"), ("plain-geonorm", "geonorm", "finished"), ("plain-nag", "nag", "finished"),
        ("neox-pre", "pre", "diverged"), ("modern-pre", "pre", "finished"),
    ):  # fmt: skip
        rows.append({"run": run, "scheme": scheme, "status": status, "steps": 100, "tokens": 4000, "parameters": 1000})
        for step, power in ((10, -1.0), (100, 0.5)):
            for layer in range(5):
                traces.append(f"{run},{step},,{layer},attn,{0.2 if layer else 9}")
                traces.append(f"{run},{step},,{layer},mlp,{0.1 * (layer + 1) ** power if layer else 9}")
    (experiment / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (experiment / "traces.csv").write_text("\n".join(traces) + "\n")
    made = runpy.run_path(str(ROOT / "005-geometry" / "angles.py"))
    out = tmp_path / "new" / "folder"
    made["main"](out, {experiment: {"modern": "", "": "planted"}})
    assert (out / "angles.md").read_text().splitlines()[2:] == [
        "| pre | 5 blocks, planted | 1 | 0.4 | 0.00 | −1.00 |", "| pre | 5 blocks, planted | 1 | 4 | 0.00 | +0.50 |",
        "| nag | 5 blocks, planted | 1 | 0.4 | 0.00 | −1.00 |", "| nag | 5 blocks, planted | 1 | 4 | 0.00 | +0.50 |",
    ]  # fmt: skip
    drawn = (out / "figures" / "angles.svg").read_text()
    assert "5 blocks, planted" in drawn and "Steps over depth: MLP" in drawn
