"""From the runs to results.jsonl, table.md, environment.json and the figures.

python experiments/006-uniform-direction/analyse.py OUT experiments/006-uniform-direction
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from train import models
from uniform import deep, facts

from geonorm.lab.statistics.comparison import Interval, paired_interval

Facts = dict[str, Any]
WORDS = {
    "norm": "the other norm", "norm_without_bias": "LayerNorm without bias", "positions": "the other positions",
    "tied": "the other tying", "mlp": "the other MLP", "bias": "the other linear biases",
}  # fmt: skip
ENDS = {
    "llama": "nano Llama: RMSNorm, RoPE, untied, SwiGLU, no biases",
    "gpt2": "nano GPT-2: LayerNorm with bias, learned positions, tied, GELU, biases",
}


def ratio(run: Facts) -> float:
    """|cos| to ones over that to random directions, mean over deep norms at the last step."""
    rows = deep(run["norms"])
    return mean(row["cos_ones_before"] for row in rows) / mean(row["cos_null_before"] for row in rows)


def shrunk(run: Facts) -> float:
    """The stream's length before norms as drawn over that at the last step: the ratio to the null of a component that
    stays what it was while the rest grows."""
    course = run["course"]
    return float(course["0"]["norm_before"] / course[max(course, key=int)]["norm_before"])


def outside(runs: list[Facts]) -> tuple[int, int, int]:
    """(below, above, all): deep norms of all runs under the 5th and over the 95th percentile of random directions."""
    rows = [row for run in runs for row in deep(run["norms"])]
    below = sum(row["cos_ones_before"] < row["cos_null_low_before"] for row in rows)
    return below, sum(row["cos_ones_before"] > row["cos_null_high_before"] for row in rows), len(rows)


def signed(found: Interval) -> str:
    end = "" if found.low is None or found.high is None else f" ({found.low:+.2f} to {found.high:+.2f})"
    return f"{found.mean:+.2f}{end}"


def table(grouped: dict[str, list[Facts]]) -> str:
    lines = [
        "| model | n | \\|cos\\| to ones, mean ± sd of seeds | null: random directions (5 to 95 %) | ratio to null "
        "| r0/r_end | ratio over it | against its end, paired (95 %) | norms below / above the null's band "
        "| learned along ones: embed, o, down "
        "| validation loss |",
        "|" + "---|" * 11,
    ]
    for name, runs in grouped.items():
        end, _, factor = name.partition("-")
        cosines = [mean(row["cos_ones_before"] for row in deep(run["norms"])) for run in runs]
        nulls = [
            mean(row[key] for run in runs for row in deep(run["norms"]))
            for key in ("cos_null_before", "cos_null_low_before", "cos_null_high_before")
        ]
        base = {run["seed"]: ratio(run) for run in grouped[end]}
        differences = [ratio(run) - base[run["seed"]] for run in runs if run["seed"] in base]
        versus = signed(paired_interval(differences)) if factor and len(differences) > 1 else "–"
        below, above, count = outside(runs)
        shares = " ".join(f"{mean(run['learned_share'][role] for run in runs):.2f}" for role in ("embed", "o", "down"))
        losses = [run["val_loss"] for run in runs]
        spread = [f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "" for values, digits in
                  ((cosines, 3), ([ratio(run) for run in runs], 2), ([shrunk(run) for run in runs], 2),
                   ([ratio(run) / shrunk(run) for run in runs], 2), (losses, 3))]  # fmt: skip
        lines.append(
            f"| {f'… with {WORDS[factor]}' if factor else f'**{ENDS[name]}**'} (`{name}`) | {len(runs)} "
            f"| {mean(cosines):.3f}{spread[0]} | {nulls[0]:.3f} ({nulls[1]:.3f} to {nulls[2]:.3f}) "
            f"| {mean(ratio(run) for run in runs):.2f}{spread[1]} | {mean(shrunk(run) for run in runs):.2f}{spread[2]} "
            f"| {mean(ratio(run) / shrunk(run) for run in runs):.2f}{spread[3]} | {versus} "
            f"| {below} / {above} of {count} | {shares} | {mean(losses):.3f}{spread[4]} |"
        )
    return "\n".join(lines) + "\n"


def figure(grouped: dict[str, list[Facts]], folder: Path) -> None:
    """One row a model, one mark a seed, on the ratio to the null; below: the course over steps."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
             "grid.color": "#ececec", "legend.frameon": False, "savefig.dpi": 160}  # fmt: skip

    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(style):
        page = Figure(figsize=(9.6, 4.6), layout="constrained")
        left, right = page.subplots(1, 2, gridspec_kw={"width_ratios": [1.5, 1]})
        some = [row for runs in grouped.values() for run in runs for row in deep(run["norms"])]
        band = [mean(row[f"cos_null_{end}_before"] / row["cos_null_before"] for row in some) for end in ("low", "high")]
        left.axvspan(*band, color="#bdbdbd", alpha=0.5, linewidth=0)
        left.axvline(1, color="#5c5c5c", linewidth=0.8)
        for place, runs in enumerate(grouped.values()):
            layer = runs[0]["model"]["norm"] == "layer"
            colour = "#0072b2" if layer else "#d55e00"
            values = [ratio(run) for run in runs]
            left.plot(values, [place] * len(values), "o", color=colour, markerfacecolor="white")
            left.plot([mean(values)], [place], "|", color=colour, markersize=14)
        left.set_yticks(range(len(grouped)), list(grouped))
        left.set_ylim(len(grouped) - 0.4, -0.6)
        left.set_xlabel("|cos| to ones before norms, over that to random directions")
        left.set_title("One mark a seed; grey: 5 to 95 % of directions", fontsize=9)
        for name in ("llama", "llama-norm_without_bias", "gpt2", "gpt2-norm"):
            for number, run in enumerate(grouped[name]):
                steps = sorted(map(int, run["course"]))
                found = [
                    run["course"][str(step)]["cos_ones_before"] / run["course"][str(step)]["cos_null_before"]
                    for step in steps
                ]
                colour = "#0072b2" if run["model"]["norm"] == "layer" else "#d55e00"
                right.plot(steps, found, color=colour, linestyle="-" if name.startswith("llama") else "--",
                           label=name if not number else None, linewidth=1.2)  # fmt: skip
        right.axhspan(*band, color="#bdbdbd", alpha=0.5, linewidth=0)
        right.axhline(1, color="#5c5c5c", linewidth=0.8)
        right.set_xlabel("step")
        right.set_title("The course; one line a seed", fontsize=9)
        right.set_ylim(0, 1.35 * right.get_ylim()[1])
        right.legend(fontsize=8, loc="upper left")
        run = next(iter(grouped.values()))[0]
        page.supxlabel(
            f"blue LayerNorm, orange RMSNorm · about {run['parameters'] / 1e6:.2f}M parameters · 4 layers · "
            f"{run['tokens'] / 1e3:.0f}k tokens a run · books-small · mean over all norms but the first",
            x=0.01, ha="left", fontsize=8, color="#5c5c5c",
        )  # fmt: skip
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            page.savefig(folder / f"uniform_direction.{suffix}", metadata=metadata)


def main(out: Path, experiment: Path) -> None:
    known = experiment / "results.jsonl"
    cached = {run["run"]: run for run in map(json.loads, known.read_text().splitlines())} if known.exists() else {}
    grouped: dict[str, list[Facts]] = {}
    for name in models():
        for path in sorted((out / "runs").glob(f"{name}-seed?")):
            found = cached.get(path.name) or facts(path)
            if found:
                grouped.setdefault(name, []).append(json.loads(json.dumps(found)))
    order = [name for end in ENDS for name in grouped if name.partition("-")[0] == end]
    grouped = {name: grouped[name] for name in order}
    with open(known, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(run) + "\n" for runs in grouped.values() for run in runs)
    (experiment / "table.md").write_text(table(grouped), encoding="utf-8")
    shutil.copy(next((out / "runs").iterdir()) / "environment.json", experiment / "environment.json")
    figure(grouped, experiment / "figures")
    print(table(grouped))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
