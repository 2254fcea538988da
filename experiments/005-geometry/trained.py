"""Which limit do trained streams follow: r ~ t, updates along the stream, or r ~ sqrt(t), updates across it?

python experiments/005-geometry/trained.py DATA RUNS [RUNS ...]

Probes every finished run in the folders RUNS on held-out text of DATA, and each scheme of a folder as it is drawn,
before the first step. Writes trained.jsonl (a line a model), trained.md and figures/trained.* into
experiments/005-geometry. What trained.jsonl has already is not probed again.
"""

from __future__ import annotations

import json
import sys
from math import acos, cos, degrees, prod
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import geonorm
from geonorm.lab.data import open_source
from geonorm.lab.open import open_run
from geonorm.lab.runs.run import RunFolder
from geonorm.lab.studies.probe_inputs import text
from geonorm.nn.decoder import Decoder
from geonorm.report.style import looks
from geonorm.report.vega import Axis, Chart, figure, save_figures

HERE = Path(__file__).parent
TOKENS = 8192
MEANS = ("cos_ones_before", "cos_null_before", "rotation", "rotation_plain")
Facts = dict[str, Any]


TEXTS: dict[str, torch.Tensor] = {}


def read_text(data: str, opened: Any) -> torch.Tensor:
    """Held-out text, the same for all runs with one tokenizer."""
    key = opened.tokenizer.fingerprint
    if key not in TEXTS:
        TEXTS[key] = text(data, opened.encode, TOKENS, opened.context)
    return TEXTS[key]


def facts(run: Path, trained: bool, data: str) -> Facts:
    opened = open_run(run)
    model = opened.model
    if not trained:
        torch.manual_seed(opened.config.seed)
        model = Decoder(model.config).eval()
    ids = read_text(data, opened)
    found = geonorm.probe(model, list(ids.split(16)), logit_lens=True, name=run.name)
    sites, summary = found.sites, RunFolder(run).summary() or {}
    norms = [row for row in found.norms if row["kind"] is not None]
    ends = next(
        row for row in found.layers if row["first"] == 0 and row["second"] == max(r["second"] for r in found.layers)
    )
    angles, laws = [row["angle"] for row in sites], found.schedule["decoder"]
    return {
        "run": f"{run.parent.name}/{run.name}",
        "scheme": summary["scheme"],
        "blocks": model.config.layers,
        "width": model.config.width,
        "million_tokens": round(summary["tokens"] / 1e6, 2) if trained else 0.0,
        "lr": summary["lr"],
        "seed": summary["seed"],
        "val_loss": summary["val_loss"] if trained else None,
        "state": "trained" if trained else "drawn",
        "tokens": found.tokens,
        "radius": [row["radius_rest"] for row in sites] + [sites[-1]["radius_after_rest"]],
        "growth": found.growth["decoder"],
        "steps": {kind: each and {"best": each["best"], **each["power"]} for kind, each in laws.items()},
        "path": {
            "sum": sum(angles),
            "turned": acos(ends["cos"]),
            "independent": acos(prod(map(cos, angles))),
        },
        "norm_spread": found.summary()["norm_spread"],
        **{key: mean(row[key] for row in norms) if norms else None for key in MEANS},
        "first_over_rest": [row["radius_first"] / row["radius_rest"] for row in sites],
        **{
            key: [row[key] for row in sites if row[key] is not None]
            for key in ("attn_first", "attn_first_head", "attn_first_null", "kurtosis", "kurtosis_null", "clamped")
        },
        "massive": sum(bool(row["massive"]) for row in sites),
        "cka_to_end": [row["cka"] for row in found.layers if row["second"] == ends["second"]],
        "lens": [row["loss"] for row in found.lens],
    }  # fmt: skip


def law(found: Facts | None) -> str:
    if found is None:
        return "–"
    if found["order"] is None:
        return "constant"
    low, high = ("open" if found[end] is None else f"{found[end]:.1f}" for end in ("low", "high"))
    return f"{found['best']}, {found['order']:.1f} ({low} to {high})"


def step(found: Facts | None) -> str:
    return "–" if not found else f"{-found['exponent']:.2f} ({-found['high']:.2f} to {-found['low']:.2f})"


def attention(blocks: list[float]) -> str:
    """One number a block, or their range where there are many."""
    return ", ".join(f"{a:.3f}" for a in blocks) if len(blocks) < 9 else f"{min(blocks):.3f} to {max(blocks):.3f}"


def about(row: Facts) -> str:
    rate = f"{row['lr']:g}" if row["state"] == "trained" else "–"
    return f"| {experiment_of(row)} `{row['scheme']}` | {row['blocks']} | {rate} | {row['state']}"


def experiment_of(row: Facts) -> str:
    return str(row["run"].partition("/")[0][:3])


def table(rows: list[Facts]) -> str:
    lines = [
        "| run | blocks | rate | state | growth of r | order q of r, all sites | from block 2 on | aligned share | "
        "turned: as one way, measured, as independent | steps, power of t: attention | MLP |",
        "|" + "---|" * 11,
    ]
    for row in rows:
        grown, path = row["growth"]["all"], row["path"]
        aligned = "–" if grown["aligned"] is None else f"{grown['aligned']:.2f}"
        turned = ", ".join(f"{degrees(path[key]):.0f}°" for key in ("sum", "turned", "independent"))
        lines.append(
            f"{about(row)} | {grown['growth']:.3g} | "
            f"{law(grown)} | {law(row['growth']['later'])} | {aligned} | {turned} | {step(row['steps'].get('attn'))} | "
            f"{step(row['steps'].get('mlp'))} |"
        )
    lines += [
        "",
        "| run | blocks | rate | state | spread of \\|x\\| before and after norms, factor (range) | rotation by norms, "
        "without gain | \\|cos\\| to ones over null | first token's \\|x\\|, largest | attention to it, blocks (null; "
        "largest head) | kurtosis, last site (null) | clamped |",
        "|" + "---|" * 11,
    ]
    for row in rows:
        spread = row["norm_spread"]
        lines.append(
            f"{about(row)} | "
            + ("–" if not spread else f"{spread['before']:.3g}, {spread['after']:.3g}, {spread['factor']:.3g} "
               f"({spread['low']:.3g} to {spread['high']:.3g})")
            + " | "
            + (
                "– | –"
                if row["rotation"] is None
                else f"{degrees(row['rotation']):.0f}°, {degrees(row['rotation_plain']):.1f}° | "
                f"{row['cos_ones_before'] / row['cos_null_before']:.2f}"
            )
            + f" | {max(row['first_over_rest']):.2f} | "
            + f"{attention(row['attn_first'])} ({row['attn_first_null'][0]:.3f}; "
            + f"{max(row['attn_first_head']):.2f}) | {row['kurtosis'][-1]:.1f} ({row['kurtosis_null'][-1]:.1f}) | "
            + ("–" if not row["clamped"] else f"{mean(row['clamped']):.2f}") + " |"
        )  # fmt: skip
    return "\n".join(lines) + "\n"


def draw(rows: list[Facts]) -> None:
    """Lengths over sub-layers, of streams that grow, with both limits through their ends, for each experiment and
    depth; and the share of their growth that lies along the stream, over depth."""
    rows = [row for row in rows if row["growth"]["all"]["aligned"] is not None]
    drawn = {"aligned": figure([draw_aligned(rows)], "experiment 012 · width 64 · 1.0M tokens of books · one seed")}
    grown = [row for row in rows if row["growth"]["all"]["order"] and row["radius"][-1] > 1.6 * row["radius"][0]]
    for number, blocks in sorted({(experiment_of(row), row["blocks"]) for row in grown}):
        own = [row for row in grown if (experiment_of(row), row["blocks"]) == (number, blocks)]
        about = f"experiment {number} · {blocks} blocks of width {own[0]['width']} · one seed"
        drawn[f"trained-{number}-{blocks}"] = figure([draw_lengths(own)], about)
    save_figures(drawn, HERE / "figures")
    for file in HERE.glob("figures/*.pdf"):
        file.unlink()  # SVG and PNG are enough


def draw_aligned(rows: list[Facts]) -> Chart:
    """Of the runs of 012 at one rate, with the share that r ~ t would have: 1 - 1/n for n equal steps from 0."""
    own = [row for row in rows if experiment_of(row) == "012" and (row["state"] == "drawn" or row["lr"] == 0.004)]
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(own, key=lambda row: (row["state"], row["scheme"], row["blocks"])):
        name = row["scheme"] + (", drawn" if row["state"] == "drawn" else "")
        lines.setdefault(name, []).append((row["blocks"], row["growth"]["all"]["aligned"]))
    limit = "r ~ t"
    chart = Chart(
        "Share of the stream's growth that lies along it", Axis(3.6, 40, log=True, title="blocks", labels=(4, 12, 36)),
        Axis(-0.15, 1.02, title="share of the growth of |x|²"), looks([limit, *lines]),
        "0: updates at right angles to the stream, as independent layers make them (r ~ sqrt t).",
        width=420, height=300,
    )  # fmt: skip
    chart.rule(y=0.0)
    chart.line(limit, [(blocks, 1 - 1 / (2 * blocks)) for blocks in range(4, 37)], "dotted")
    for name, points in lines.items():
        chart.line(name, points, "thin" if name.endswith("drawn") else "line")
        for blocks, share in points:
            chart.mark(name, blocks, share, f"{name} · {blocks} blocks: {share:.2f}")
    return chart


def draw_lengths(rows: list[Facts]) -> Chart:
    last = 2 * rows[0]["blocks"]
    shown = {row["scheme"] + (f", {row['lr']:g}" if row["state"] == "trained" else ", drawn"): row for row in rows}
    y = Axis.around([r for row in rows for r in row["radius"]], log=True, title="|x|, logarithmic")
    x = Axis(-0.3, last + 0.3, title="sub-layers passed", labels=range(0, last + 1, max(1, last // 8)))
    note = "Through the ends, dotted: |x|² grows evenly (sqrt); thin: |x| does (linear)."
    chart = Chart("Length of the stream", x, y, looks(list(shown)), note, width=560, height=300)
    for name, row in shown.items():
        radii = row["radius"]
        chart.line(name, list(enumerate(radii)))
        for place, r in list(enumerate(radii))[:: max(1, last // 12)]:
            chart.mark(name, place, r, f"{name} · {place}: {r:.3g}")
        for order, kind in ((2, "dotted"), (1, "thin")):
            first, end = radii[0] ** order, radii[-1] ** order
            points = [(s / 10, (first + (end - first) * s / 10 / last) ** (1 / order)) for s in range(10 * last + 1)]
            chart.line(name, points, kind)
    return chart


def main(data: str, folders: list[Path]) -> None:
    open_source(data)
    known = HERE / "trained.jsonl"
    rows = [json.loads(line) for line in known.read_text().splitlines()] if known.exists() else []
    done = {row["name"] for row in rows}
    for folder in folders:
        for run in sorted(folder.iterdir()):
            if (
                not (run / "config.yaml").exists()
                or (summary := RunFolder(run).summary() or {}).get("status") != "finished"
            ):
                continue
            blocks = (config := RunFolder(run).config()).shape(config.scheme).layers
            drawn = f"{folder.name}, {summary['scheme']}, {blocks} blocks, drawn"  # whatever the learning rate
            for trained, name in ((False, drawn), (True, f"{folder.name}/{run.name}")):
                if name not in done:
                    done.add(name)
                    rows.append(json.loads(json.dumps({"name": name} | facts(run, trained, data))))
                    print(name, flush=True)
    known.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (HERE / "trained.md").write_text(table(rows), encoding="utf-8")
    draw(rows)


if __name__ == "__main__":
    main(sys.argv[1], [Path(folder) for folder in sys.argv[2:]])
