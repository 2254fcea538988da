"""What a script of experiments computes of traces, from planted numbers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from .made import ROOT


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
