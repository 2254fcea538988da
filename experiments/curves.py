"""Loss against rate in the runs of an experiment, and differences at equal rates, from its results.jsonl.

    python experiments/curves.py experiments/017-paper-recipe BASELINE SCHEME [SCHEME ...]

figures/rates.svg: the validation loss of each scheme at every rate, and its difference to BASELINE, paired by seed;
rates.md: the same numbers, differences of each at its best rate, and each scheme's fitted minimum. A scheme's runs
are those named by data, scheme and rate alone. Two intervals (95 %) of a mean difference stand side by side: Student's
of its own pairs, and the one under variances that the spreads of all differences moderate (Smyth 2004), which a pair
alone has too, on the strength of the others.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from programme import folder_with, read_runs, shorten
from rates import read_losses

from geonorm.lab.runs.folder import slug
from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.comparison import aggregate, paired_interval, usable
from geonorm.lab.statistics.moderated import Estimate, contrast, fit_prior, moderate
from geonorm.report.charts import Axis, Chart, Figure, figure
from geonorm.report.style import Look, looks, rate, signed
from geonorm.report.tables import (
    chances,
    markdown_lines,
    moderated_difference,
    paired_difference,
    with_error,
    with_interval,
)

Runs = Sequence[Summary]
RATE, ZERO = "highest learning rate", Estimate(0.0, 0.0, math.inf)
DRAWN = 1.5
"""Losses above this many times the lowest are left out of figures: what does not learn would press what does into a
line."""


Ends = tuple[float, float] | None
"""Of an interval."""


class Gap(NamedTuple):
    """A scheme's loss less the baseline's at one rate: mean, Student's interval and the moderated one (None where
    nothing gives one), and the pairs' differences by seed."""

    scheme: str
    lr: float
    mean: float
    own: Ends
    moderated: Ends
    pairs: Mapping[int, float]


def draw_losses(title: str, unit: str, runs: Runs, shared: Mapping[str, Look] | None = None) -> Chart:
    """Loss against rate: the mean over seeds, and every run. shared: looks of the schemes of all charts of a figure."""
    ends = [run for run in runs if usable(run)]
    schemes = list(dict.fromkeys(run.scheme for run in runs))
    high = DRAWN * min(run.val_loss for run in ends)
    y = Axis.around([run.val_loss for run in ends if run.val_loss <= high], title=f"loss ({unit})")
    x = Axis.around([run.lr for run in runs], log=True, title=RATE, form="~e")
    chart = Chart(
        title, x, y, shared or looks(schemes), "Lines: means over seeds. Marks: runs.", legend=shared is None
    )  # fmt: skip
    for scheme in schemes:
        means = read_losses([run for run in runs if run.scheme == scheme])
        chart.line(scheme, [(lr, loss if loss < math.inf else math.nan) for lr, loss in means.items()])
        for run in ends:
            if run.scheme == scheme:
                chart.mark(scheme, run.lr, run.val_loss, f"seed {run.seed}: {run.val_loss:.4f}")
    return chart


def compare_at_rates(runs: Runs, baseline: str) -> list[Gap]:
    """Every scheme's differences to the baseline, rate by rate, of seeds that both have."""
    losses: dict[tuple[str, float], dict[int, float]] = {}
    for run in filter(usable, runs):
        losses.setdefault((run.scheme, run.lr), {})[run.seed] = run.val_loss
    pairs: dict[tuple[str, float], dict[int, float]] = {}
    for (scheme, lr), own in losses.items():
        base = losses.get((baseline, lr), {})
        shared = {seed: own[seed] - base[seed] for seed in sorted(own) if seed in base}
        if shared and scheme != baseline:
            pairs[scheme, lr] = shared
    found = {key: paired_interval(list(own.values())) for key, own in pairs.items()}
    known = {key: each.std for key, each in found.items() if each.std is not None}
    rates = [lr for _, lr in known]  # at one rate all are less the same runs
    prior = fit_prior([std**2 for std in known.values()], [len(pairs[key]) - 1 for key in known], rates)
    gaps = []
    for (scheme, lr), own in sorted(pairs.items()):
        each, moderated = found[scheme, lr], None
        if prior:
            variance, df = moderate((each.std or 0.0) ** 2, len(own) - 1, prior)
            moderated = contrast(Estimate(each.mean, variance / len(own), df), ZERO)[1:3]
        ends = None if each.low is None or each.high is None else (each.low, each.high)
        gaps.append(Gap(scheme, lr, each.mean, ends, moderated, own))
    return gaps


def draw_gaps(gaps: Sequence[Gap], baseline: str, unit: str) -> Chart:
    ends = [end for gap in gaps for end in (*(gap.moderated or ()), *gap.pairs.values())]
    schemes = list(dict.fromkeys(gap.scheme for gap in gaps))
    chart = Chart(
        f"Difference to {baseline} at the same rate", Axis.around([gap.lr for gap in gaps], log=True, title=RATE,
        form="~e"), Axis.around([*ends, 0.0], title=f"difference ({unit})"), looks(schemes),
        "Means over pairs with moderated 95 % intervals. Marks: pairs of one seed.", legend=True,
    )  # fmt: skip
    chart.rule(y=0.0)
    for scheme in schemes:
        own = [gap for gap in gaps if gap.scheme == scheme]
        chart.line(scheme, [(gap.lr, gap.mean) for gap in own])
        for gap in own:
            if gap.moderated:
                chart.outline(scheme, [(gap.lr, end) for end in gap.moderated], f"{scheme} {gap.lr}")
            for seed, pair in gap.pairs.items():
                chart.mark(scheme, gap.lr, pair, f"seed {seed}: {signed(pair)}")
    return chart


def tabulate(runs: Runs, gaps: Sequence[Gap], baseline: str) -> list[str]:
    """One line for each scheme and rate."""
    at = {(gap.scheme, gap.lr): gap for gap in gaps}
    cells = []
    for scheme in dict.fromkeys(run.scheme for run in runs):
        for lr in sorted({run.lr for run in runs if run.scheme == scheme}):
            own = [run for run in runs if (run.scheme, run.lr) == (scheme, lr)]
            loss = paired_interval([run.val_loss for run in filter(usable, own)])
            gap = at.get((scheme, lr))
            own_ends, moderated = (describe(ends) for ends in ((gap.own, gap.moderated) if gap else (None, None)))
            spread = "" if loss.std is None else f" ± {loss.std:.4f}"
            pairs = "–" if gap is None else f"{signed(gap.mean)}{own_ends}, {len(gap.pairs)}"
            lost = f" ({len(own) - loss.n} diverged)" if loss.n < len(own) else ""
            mean = f"{loss.mean:.4f}{spread}" if loss.n else "–"
            cells.append([f"`{scheme}`", rate(lr), f"{loss.n}{lost}", mean, pairs, moderated.strip() or "–"])
    return markdown_lines(
        ["scheme", "rate", "n", "loss", f"less `{baseline}`, paired (95 %), pairs", "moderated (95 %)"], cells
    )


def describe(ends: Ends) -> str:
    return "" if ends is None else f" ({signed(ends[0])} to {signed(ends[1])})"


def tabulate_minima(runs: Runs) -> list[str]:
    """The minimum of a parabola in log rate through all runs of a scheme, where three rates or more are known; of the
    last weights and of those averaged over the end of training."""
    cells = []
    for key, weights in (("val_loss", "last"), ("val_loss_average", "averaged")):
        known = [
            replace(run, val_loss=getattr(run, key)) for run in runs if getattr(run, key) is not None or not usable(run)
        ]
        for row in aggregate(known) if any(map(usable, known)) else []:
            fit = row.fit
            if not fit:
                continue
            if fit.loss is None:
                cells.append([f"`{row.scheme}`", weights, "–", "–", "–", str(fit.problem)])
                continue
            ends = "" if fit.lr_low is None else f" ({rate(fit.lr_low)} to {rate(fit.lr_high)})"
            apart = with_interval(fit.difference, fit.difference_low, fit.difference_high)
            apart += "" if fit.difference is None else f", p = {fit.p:.2g}"
            best = [f"{rate(fit.lr)}{ends}", with_error(fit.loss, fit.loss_error)]
            cells.append([f"`{row.scheme}`", weights, *best, apart, str(fit.problem or "–")])
    return markdown_lines(["scheme", "weights", "best rate (95 %)", "loss", "difference (95 %)", "problem"], cells)


def tabulate_best(runs: Runs, baseline: str) -> list[str]:
    """Each scheme at its best rate, and its difference to the baseline at its own, paired by seed (Student's 95 %), and
    with moderated variances; p once more by Holm, the differences of one kind of weights being a family. The best of
    the lowest seed, which alone has all rates: a mean of more seeds would be held against the luck of one; and of rates
    at which no run diverged: survivors are no scheme."""
    cells = []
    lost = {(run.scheme, run.lr) for run in runs if not usable(run)}
    for key, weights in (("val_loss", "last"), ("val_loss_average", "averaged")):
        own = [run for run in runs if getattr(run, key) is not None and (run.scheme, run.lr) not in lost]
        first = min((run.seed for run in own), default=0)
        best: list[Summary] = []
        for scheme in dict.fromkeys(run.scheme for run in own):
            ends = [run for run in own if run.scheme == scheme]
            low = min((run for run in ends if run.seed == first), key=lambda run: getattr(run, key)).lr
            best += [replace(run, val_loss=getattr(run, key)) for run in ends if run.lr == low]
        for row in aggregate(best, baseline, absent=True):
            seeds = sorted((run.seed, run.val_loss) for run in best if run.scheme == row.scheme)
            losses = ", ".join(f"{loss:.4f}" for _, loss in seeds)
            apart = f"{paired_difference(row)}, {row.pairs}" if row.pairs else "–"
            p = row.moderated_p
            alike = "–" if p is None else f"{moderated_difference(row)}, {p:.2g}, {row.moderated_p_holm:.2g}"
            cells.append([f"`{row.scheme}`", weights, rate(row.lr), losses, apart, chances(row.p, row.p_holm), alike])
    heads = ["scheme", "weights", "best rate", "loss, seed by seed", "difference (95 %), pairs", "p, Holm"]
    return markdown_lines([*heads, "moderated (95 %), p, Holm"], cells)


def main(experiment: Path, baseline: str, schemes: Sequence[str]) -> int:
    wanted = [baseline, *schemes]
    named = {f"books-{slug(scheme)}": scheme for scheme in wanted}
    runs = [run for run in read_runs(experiment) if run.run.rpartition("-lr")[0] in named]
    if missing := set(wanted) - {run.scheme for run in runs}:
        print(
            f"{experiment} has no runs of {', '.join(sorted(missing))} on books: name schemes as results.jsonl does",
            file=sys.stderr,
        )
        return 2
    runs = [replace(run, scheme=shorten(run.scheme)) for run in sorted(runs, key=lambda run: wanted.index(run.scheme))]
    baseline = shorten(baseline)
    gaps = compare_at_rates(runs, baseline)
    (experiment / "rates.md").write_text(
        "\n".join(
            [
                *tabulate(runs, gaps, baseline),
                "",
                "Each at the best of its rates on the first seed:",
                "",
                *tabulate_best(runs, baseline),
                "",
                "Minima of parabolas in log rate:",
                "",
                *tabulate_minima(runs),
            ]
        )
        + "\n",
        encoding="utf-8",
    )
    unit = "nats per token"
    charts = [draw_losses("Loss at the end", unit, runs), *([draw_gaps(gaps, baseline, unit)] if gaps else [])]
    (experiment / "figures").mkdir(exist_ok=True)
    print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / "rates.svg"))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=folder_with("results.jsonl"), help="folder with results.jsonl")
    parser.add_argument("baseline", metavar="BASELINE")
    parser.add_argument("schemes", metavar="SCHEME", nargs="+")
    words = parser.parse_args()
    sys.exit(main(words.experiment, words.baseline, words.schemes))
