"""From the runs of train.py to results.jsonl, schedule.json, table.md, environment.json and the figures.

python experiments/005-geometry/analyse.py OUT experiments/005-geometry
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from uniform import CPU, facts

from geonorm.decay import LAWS
from geonorm.lab.distributed.ranks import ALONE
from geonorm.lab.resolve import resolve
from geonorm.lab.runs.folder import RunFolder, read_rows
from geonorm.lab.train import trace
from geonorm.lab.train.state import build_state
from geonorm.lab.train.text import load_text
from geonorm.measure.schedule import implied

Facts = dict[str, Any]
NORMS = {"layer": ("LayerNorm", "#0072b2"), "rms": ("RMSNorm", "#d55e00")}
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon, embedding and head AdamW", "sgd": "SGD with momentum"}


def ratio(point: dict[str, float]) -> float:
    return point["cos_ones_before"] / point["cos_null_before"]


def arrives(run: Facts) -> int | None:
    """The first step from which |cos| to ones stays below the 5th percentile of random directions."""
    below = [
        (int(step), point["cos_ones_before"] < point["cos_null_low_before"]) for step, point in run["course"].items()
    ]
    found = None
    for step, under in sorted(below, reverse=True):
        if not under:
            break
        found = step
    return found


def table(runs: list[Facts]) -> str:
    """One row an optimizer and norm, over learning rates and batch sizes."""
    lines = [
        "| optimizer | norm | cells | \\|cos\\| to ones over null: start | end, mean (range) | below the "
        "null's band from step | learned along ones: embed, o, down | validation loss, best to worst |",
        "|" + "---|" * 8,
    ]
    for optimizer, title in OPTIMIZERS.items():
        for norm, (name, _) in NORMS.items():
            cells = [run for run in runs if (run["optimizer"], run["model"]["norm"]) == (optimizer, norm)]
            if not cells:
                continue
            last = [run["course"][max(run["course"], key=int)] for run in cells]
            ends = [ratio(point) for point in last]
            first = [arrives(run) for run in cells]
            counted = sorted(step for step in first if step is not None)
            told = (
                f"{counted[0]} to {counted[-1]} in {len(counted)} of {len(cells)}"
                if counted
                else f"never in {len(cells)}"
            )
            shares = " ".join(
                f"{mean(run['learned_share'][role] for run in cells):.2g}" for role in ("embed", "o", "down")
            )
            losses = sorted(run["val_loss"] for run in cells)
            lines.append(
                f"| {title} | {name} | {len(cells)} | {mean(ratio(run['course']['0']) for run in cells):.2f} "
                f"| {mean(ends):.2f} ({min(ends):.2f} to {max(ends):.2f}) | {told} | {shares} "
                f"| {losses[0]:.2f} to {losses[-1]:.2f} |"
            )
    return "\n".join(lines) + "\n"


def schedules(paths: list[Path]) -> list[dict[str, Any]]:
    """Laws of the implied step size over depth, before the first step and after the last."""
    found = []
    for path in paths:
        summary = RunFolder(path).summary()
        if summary is None or summary["status"] != "finished":
            continue
        config = RunFolder(path).config()
        resolved = resolve(config, ALONE)
        state = build_state(resolved, load_text(config), CPU)
        start = trace.trace(state.model, state.validation.trace_ids(), 0, {}).sites
        end = [row for row in read_rows(path / "trace.jsonl") if row["step"] == summary["steps"]]
        for when, rows in (("start", start), ("end", end)):
            found.append(
                {
                    "run": path.name,
                    "norm": resolved.shape.norm,
                    "when": when,
                    "ratio": {kind: [row["ratio"] for row in rows if row["kind"] == kind] for kind in ("attn", "mlp")},
                    "laws": implied(rows)["decoder"],
                    "laws_after_block_1": implied([row for row in rows if row["t"] > 1])["decoder"],
                }
            )
    return found


def schedule_table(found: list[dict[str, Any]]) -> str:
    """Laws fitted to logarithms, over all blocks and without the first; power of t: mean, lowest and highest run."""
    lines = [
        "| norm | when | sites | blocks | law that fits (runs) | R² harmonic | sqrt | linear | constant | power of t |",
        "|" + "---|" * 10,
    ]
    for norm, (name, _) in NORMS.items():
        for when in ("start", "end"):
            for kind in ("attn", "mlp"):
                for key, blocks in (("laws", "all"), ("laws_after_block_1", "2 on")):
                    laws = [row[key][kind] for row in found if (row["norm"], row["when"]) == (norm, when)]
                    if not laws:
                        continue
                    best = [law["best"] for law in laws]
                    named = ", ".join(f"{law} {best.count(law)}" for law in dict.fromkeys(best))
                    fits = " | ".join(f"{mean(law[each]['r2'] for law in laws):.2f}" for each in LAWS)
                    power = [-law["power"]["exponent"] for law in laws]
                    lines.append(
                        f"| {name} | {when} | {kind} | {blocks} | {named} | {fits} "
                        f"| {mean(power):.2f} ({min(power):.2f} to {max(power):.2f}) |"
                    )
    return "\n".join(lines) + "\n"


def figures(runs: list[Facts], found: list[dict[str, Any]], gradients: dict[str, Any], folder: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
             "grid.color": "#ececec", "legend.frameon": False, "savefig.dpi": 160}  # fmt: skip

    folder.mkdir(parents=True, exist_ok=True)

    def save(page: Figure, name: str, caption: str) -> None:
        page.supxlabel(caption, x=0.01, ha="left", fontsize=8, color="#5c5c5c")
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            page.savefig(folder / f"{name}.{suffix}", metadata=metadata)

    with mpl.rc_context(style):
        page = Figure(figsize=(9.6, 3.4))
        for axes, (optimizer, title) in zip(page.subplots(1, 3, sharey=True), OPTIMIZERS.items(), strict=True):
            cells = [run for run in runs if run["optimizer"] == optimizer]
            for norm, (name, colour) in NORMS.items():
                for number, run in enumerate(run for run in cells if run["model"]["norm"] == norm):
                    steps = sorted(run["course"], key=int)
                    axes.plot(list(map(int, steps)), [ratio(run["course"][step]) for step in steps], color=colour,
                              linewidth=1, alpha=0.8, label=None if number else name)  # fmt: skip
            points = [point for run in cells for point in run["course"].values()]
            band = [mean(p[f"cos_null_{end}_before"] / p["cos_null_before"] for p in points) for end in ("low", "high")]
            axes.axhspan(*band, color="#bdbdbd", alpha=0.5, linewidth=0)
            axes.axhline(1, color="#5c5c5c", linewidth=0.8)
            axes.set_title(title)
            axes.set_xlabel("step")
            axes.legend(fontsize=8, loc="upper left")
        highest = max(ratio(point) for run in runs for point in run["course"].values())
        page.axes[0].set_ylim(0, 1.2 * highest)
        page.axes[0].set_ylabel("|cos| to ones over null")
        about = (
            "One line a cell: 3 learning rates x 2 batch sizes; grey: 5 to 95 % of random directions · "
            f"{runs[0]['parameters'] / 1e6:.2f}M parameters · 4 layers · {runs[0]['steps']} steps · books-small"
        )
        save(page, "course", about)

        page = Figure(figsize=(9.6, 3.4))
        for axes, when in zip(page.subplots(1, 2, sharey=True), ("start", "end"), strict=True) if found else ():
            for row in found:
                if row["when"] == when:
                    for kind, dashes in (("attn", "--"), ("mlp", "-")):
                        values = row["ratio"][kind]
                        name, colour = NORMS[row["norm"]]
                        named = f"{name}, {kind}" if row["run"].endswith("seed0") else None
                        axes.plot(range(1, len(values) + 1), values, dashes, color=colour, linewidth=1, label=named)
            depth = len(found[0]["ratio"]["attn"])
            for power, word in ((1, "1/t"), (0.5, "1/√t")):
                axes.plot([1, depth], [1, depth**-power], ":", color="#5c5c5c", linewidth=1)
                axes.annotate(word, (depth, depth**-power), fontsize=8, color="#5c5c5c")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("t = block + 1")
            axes.set_title({"start": "As drawn", "end": "After training"}[when])
        if found:
            page.axes[0].set_ylabel("implied step size |P(x'-x)|/|x|")
            page.axes[1].legend(fontsize=8)
            save(page, "schedule", "pre(entry=embedding) · 16 layers · width 64 · one line a seed · books-small")

        page = Figure(figsize=(9.6, 3.4))
        left, right = page.subplots(1, 2)
        for scheme, rows in gradients.items():
            for axes, key in ((left, "w2_depth"), (right, "w2_width")):
                axes.plot(rows[key]["x"], rows[key]["mean"], "o-", markersize=3, linewidth=1.2, label=scheme)
        for axes, word, reference in ((left, "layers", lambda x: x**-0.5), (right, "width", lambda x: x**0.5)):
            xs = gradients["pre"]["w2_depth" if word == "layers" else "w2_width"]["x"]
            unit = gradients["pre"]["w2_depth" if word == "layers" else "w2_width"]["mean"][0] / reference(xs[0])
            axes.plot(xs, [unit * reference(x) for x in xs], ":", color="#5c5c5c")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(xs, list(map(str, xs)))
            axes.minorticks_off()
            axes.set_xlabel(word)
        left.set_ylabel("gradient norm of the last W2")
        left.set_title("width 64; dotted: 1/√L")
        right.set_title("6 layers; dotted: √d")
        right.legend(fontsize=7)
        save(
            page,
            "gradients",
            "At initialisation · mean over 3 seeds · LayerNorm, GELU, hidden 4 x width, vocabulary 1024",
        )


def main(out: Path, experiment: Path) -> None:
    known = experiment / "results.jsonl"
    cached = {run["run"]: run for run in map(json.loads, known.read_text().splitlines())} if known.exists() else {}
    paths = sorted((out / "runs").iterdir())
    runs = [json.loads(json.dumps(run)) for path in paths if (run := cached.get(path.name) or facts(path)) is not None]
    known.write_text("".join(json.dumps(run) + "\n" for run in runs), encoding="utf-8")
    found = schedules([path for path in paths if path.name.startswith("deep-")])
    (experiment / "schedule.json").write_text(json.dumps(found, indent=1) + "\n")
    grid = [run for run in runs if not run["run"].startswith("deep-")]
    text = table(grid) + "\n" + schedule_table(found)
    (experiment / "table.md").write_text(text, encoding="utf-8")
    shutil.copy(paths[0] / "environment.json", experiment / "environment.json")
    figures(grid, found, json.loads((experiment / "gradients.json").read_text()), experiment / "figures")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
