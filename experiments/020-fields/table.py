"""The table and figure of 020, from its results.jsonl and traces.csv.

    python experiments/020-fields/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment. A field's effect is the mean of its
differences to the rule without it, of one rate and seed each, over both rates: what it does there, and not a minimum
over rates. Its error comes from the differences between seeds at one rate, which all fields share as far as their
spreads agree; p is adjusted by Holm for all fields.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from programme import read_runs
from runs import BASE, FIELDS, RATES, with_field

from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.comparison import usable
from geonorm.lab.statistics.moderated import (
    LEVEL,
    MARGIN,
    Contrast,
    Estimate,
    contrast,
    equal_p,
    fit_prior,
    holm,
    moderate,
)
from geonorm.report.charts import Chart, Figure, Strip, figure, strip_chart
from geonorm.report.style import looks, rate, signed
from geonorm.report.tables import markdown_lines, with_interval
from geonorm.schemes import parse

ZERO = Estimate(0.0, 0.0, float("inf"))
Runs = Sequence[Summary]
Pairs = Mapping[float, Mapping[int, float]]
"""By rate and seed, a loss less that of the rule without the field."""


class Effect(NamedTuple):
    field: str
    pairs: Pairs
    found: Contrast | None
    """None where no field has two seeds at all its rates."""


def read_clamped(experiment: Path) -> dict[str, dict[int, float]]:
    """By run and step, the share of clamped tokens, mean over sub-layers."""
    shares: dict[str, dict[int, list[float]]] = {}
    for row in csv.DictReader((experiment / "traces.csv").read_text(encoding="utf-8").splitlines()):
        if row["clamped"]:
            shares.setdefault(row["run"], {}).setdefault(int(row["step"]), []).append(float(row["clamped"]))
    return {run: {step: fmean(values) for step, values in sorted(steps.items())} for run, steps in shares.items()}


def read_pairs(runs: Runs) -> dict[str, Pairs]:
    """By field."""
    losses: dict[str, dict[tuple[float, int], float]] = {}
    for run in filter(usable, runs):
        losses.setdefault(name(run), {})[run.lr, run.seed] = run.val_loss
    base, found = losses.get(BASE, {}), dict[str, Pairs]()
    for field in FIELDS:
        own = losses.get(str(parse(with_field(field))), {})
        found[field] = {
            lr: {seed: own[lr, seed] - base[lr, seed] for at, seed in sorted(own) if at == lr and (lr, seed) in base}
            for lr in sorted(RATES)
        }
    return found


def name(run: Summary) -> str:
    """The scheme as the catalogue writes it: a plan may name a field at its default."""
    return str(parse(run.scheme))


def by_seed(pairs: Pairs) -> list[float]:
    """A field's mean over all rates, of each seed that has them all: runs of one seed share data and draws, so that
    its rates are one observation."""
    shared = set[int].intersection(*(set(own) for own in pairs.values()))
    return [fmean(own[seed] for own in pairs.values()) for seed in sorted(shared)]


def judge(fields: Mapping[str, Pairs]) -> list[Effect]:
    """The mean over seeds, under variances that those of all fields moderate."""
    means = {field: by_seed(pairs) for field, pairs in fields.items()}
    several = [own for own in means.values() if len(own) > 1]
    prior = fit_prior([variance(own) for own in several], [len(own) - 1 for own in several], [BASE] * len(several))
    effects = []
    for field, own in means.items():
        found = None
        if prior and own:
            squared, df = moderate(variance(own) if len(own) > 1 else 0.0, len(own) - 1, prior)
            found = contrast(Estimate(fmean(own), squared / len(own), df), ZERO, prior.total)
        effects.append(Effect(field, fields[field], found))
    return effects


def count_lost(runs: Runs) -> Counter[str]:
    """Runs by scheme that came to no loss."""
    return Counter(name(run) for run in runs if not usable(run))


def tabulate(effects: Sequence[Effect], shares: Mapping[str, float], lost: Mapping[str, int]) -> list[str]:
    adjusted = holm([effect.found.p if effect.found else None for effect in effects])
    lines = []
    for effect, p in zip(effects, adjusted, strict=True):
        at = [
            f"{signed(fmean(own.values()))}, {len(own)}" if (own := effect.pairs.get(lr)) else "–"
            for lr in sorted(RATES)
        ]
        told, chance, equal = "–", "–", "–"
        if found := effect.found:
            told = with_interval(*found[:3])
            chance = f"{found.p:.2g}, {p:.2g}"
            equal = "yes" if equal_p(found) < 1 - LEVEL else "no"
        scheme = str(parse(with_field(effect.field)))
        share = f"{shares[scheme]:.0%}" if scheme in shares else "–"
        lines.append([f"`{effect.field}`", *at, told, chance, equal, share, str(lost.get(scheme, 0))])
    head = ("field", *(f"{rate(lr)}, pairs" for lr in sorted(RATES)), "both (95 %)", "p, Holm",
            f"equal within {MARGIN:g}", "clamped", "diverged")  # fmt: skip
    return markdown_lines(head, lines)


def share_clamped(runs: Runs, clamped: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """By scheme, of tokens of all sites at the end, mean over its runs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if shares := clamped.get(run.run):
            found.setdefault(name(run), []).append(shares[max(shares)])
    return {scheme: fmean(own) for scheme, own in found.items()}


def draw(effects: Sequence[Effect]) -> Chart:
    """One row a field: its pairs, and its effect with the interval."""
    strips = []
    for effect in effects:
        dots = [(gap, f"{rate(lr)}, seed {n}") for lr, own in effect.pairs.items() for n, gap in own.items()]
        found = effect.found
        if dots:
            ends = (found.difference, found.low, found.high) if found else (fmean(gap for gap, _ in dots), None, None)
            strips.append(Strip(effect.field, signed(ends[0]), dots, *ends))
    unit = f"difference to {BASE}, nats per token (left of 0 is better)"
    note = "One mark a rate and seed; bars: 95 % of the mean over both rates."
    return strip_chart("One field changed", unit, strips, looks([effect.field for effect in effects]), note, rule=0.0)


def main(experiment: Path) -> None:
    runs = read_runs(experiment)
    effects = judge(read_pairs(runs))
    clamped = share_clamped(runs, read_clamped(experiment))
    base = f"`{BASE}`: " + ", ".join(
        f"{fmean(own):.4f} at {rate(lr)}"
        for lr in sorted(RATES)
        if (own := [run.val_loss for run in runs if run.scheme == BASE and run.lr == lr and usable(run)])
    )
    share = f"; {clamped[BASE]:.0%} of the site-tokens clamped at the end" if BASE in clamped else ""
    lines = [base + share + ".", "", *tabulate(effects, clamped, count_lost(runs))]
    (experiment / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(experiment / "table.md")
    (experiment / "figures").mkdir(exist_ok=True)
    print(Figure(figure([draw(effects)], experiment.name)).save(experiment / "figures" / "fields.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
