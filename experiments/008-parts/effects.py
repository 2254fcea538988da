"""Main effects and two-way interactions of 008, from its results.jsonl.

    python experiments/008-parts/effects.py [FOLDER]

Writes effects.md and figures/ into the folder, by default that of the experiment. All cells of {write, decay, ceiling,
rate} are fitted at once by least squares, with every main effect and every interaction of two of them; what three or
four of them do together counts as noise, and beside it stands the noise between seeds. Runs that diverged, or end more
than LEARNT above the lowest, are named and left out of the fit; where a write has no other run under a decay, all runs
of that decay are, since a mean over decays would not be one of it. An effect is the mean over all
other factors of one level less that of another, with its interval of 95 %.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import isnan, log2, nan, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtrit

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from programme import read_runs
from runs import CEILINGS, CONTROLS, DECAYS, RATES, SUMS, WRITES, name_cell

from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.comparison import usable
from geonorm.lab.statistics.moderated import LEVEL, holm, two_sided_p
from geonorm.report.charts import Axis, Chart, Figure, figure
from geonorm.report.style import looks, rate, signed
from geonorm.report.tables import markdown_lines, with_interval

Runs = Sequence[Summary]
Levels = tuple[Any, ...]
FACTORS: dict[str, Levels] = {"write": tuple(WRITES), "decay": DECAYS, "ceiling": tuple(CEILINGS), "rate": RATES}
LEARNT = 0.5
"""Nats above the lowest of all, beyond which a network has not learned what the others have."""
AGAINST = {"write": "add", "decay": "harmonic", "ceiling": "free", "rate": RATES[0]}
"""The level that the others are told against."""
TERMS = [terms for size in (1, 2) for terms in combinations(FACTORS, size)]
MEASURES = {"loss": "loss (nats per token)", "spikes": "log2(1 + spikes of the gradient)"}


class Effect(NamedTuple):
    """A difference of means with its interval and p."""

    value: float
    low: float
    high: float
    p: float


def contrasts(levels: Levels) -> NDArray[np.float64]:
    """One row a level, which add up to nothing: an effect is told about the mean of all levels."""
    return np.vstack([np.eye(len(levels) - 1), -np.ones(len(levels) - 1)])


class Fit:
    """A measure of runs, {factors: levels} of each and its value, as a sum of TERMS. factors: the levels there are."""

    def __init__(
        self,
        cells: Sequence[Mapping[str, Any]],
        values: Sequence[float],
        factors: Mapping[str, Levels] = FACTORS,
    ) -> None:
        self.factors = factors
        self.parts: dict[tuple[str, ...], slice] = {}
        columns, start = [np.ones((len(cells), 1))], 1
        for terms in TERMS:
            own = np.array([self.code({factor: cell[factor] for factor in terms}) for cell in cells])
            self.parts[terms] = slice(start, start + own.shape[1])
            start += own.shape[1]
            columns.append(own)
        self.design, self.values = np.hstack(columns), np.asarray(values, dtype=float)
        if np.linalg.matrix_rank(self.design) < start:
            missing = describe_missing(cells, factors)
            why = f"no run has {missing}" if missing else "cells that many runs lack"
            raise SystemExit(f"error: effects cannot be told apart: {why}; train some first")
        self.weights, self.df, self.squares = self.solve(self.design)
        self.variance = self.squares / self.df
        self.inverse = np.linalg.inv(self.design.T @ self.design)

    def place(self, factor: str, level: Any) -> NDArray[np.float64]:
        return np.asarray(contrasts(self.factors[factor])[self.factors[factor].index(level)])

    def code(self, levels: Mapping[str, Any]) -> NDArray[np.float64]:
        """Of one or two factors at these levels: the product of their contrasts."""
        found = np.ones(1)
        for factor, level in levels.items():
            found = np.outer(found, self.place(factor, level)).ravel()
        return found

    def solve(self, design: NDArray[np.float64]) -> tuple[NDArray[np.float64], int, float]:
        weights, *_ = np.linalg.lstsq(design, self.values, rcond=None)
        rest = self.values - design @ weights
        return weights, len(self.values) - design.shape[1], float(rest @ rest)

    def contrast(self, terms: tuple[str, ...], code: NDArray[np.float64]) -> Effect:
        row = np.zeros(len(self.weights))
        row[self.parts[terms]] = code
        value, error = float(row @ self.weights), sqrt(self.variance * float(row @ self.inverse @ row))
        half = float(stdtrit(self.df, (1 + LEVEL) / 2)) * error
        return Effect(value, value - half, value + half, two_sided_p(value, error, self.df))

    def effect(self, factor: str, level: Any) -> Effect:
        """Of a level less the one it is told against."""
        return self.apart(factor, level, AGAINST[factor])

    def apart(self, factor: str, first: Any, second: Any) -> Effect:
        """Of one level less another."""
        return self.contrast((factor,), self.place(factor, first) - self.place(factor, second))

    def interaction(self, pair: tuple[str, ...], levels: Levels) -> Effect:
        """The effect of the first level where the second is, less the same where what that is told against is."""
        apart = [
            self.place(factor, level) - self.place(factor, AGAINST[factor])
            for factor, level in zip(pair, levels, strict=True)
        ]
        return self.contrast(pair, np.outer(*apart).ravel())

    def test(self, terms: tuple[str, ...]) -> float:
        """p of F for a term as a whole; NaN where the fit leaves rounding alone."""
        if self.squares <= 1e-20 * float(self.values @ self.values):
            return nan
        part = self.parts[terms]
        left = np.delete(self.design, np.arange(part.start, part.stop), axis=1)
        more, size = self.solve(left)[2] - self.squares, part.stop - part.start
        return float(fdtrc(size, self.df, more / size / self.variance))


def learnt_decays(cells: Sequence[tuple[dict[str, Any], Summary]]) -> Levels:
    """Those under which every write has a run."""
    there = {(cell["write"], cell["decay"]) for cell, _ in cells}
    return tuple(decay for decay in DECAYS if all((write, decay) in there for write in WRITES))


def describe_missing(cells: Sequence[Mapping[str, Any]], factors: Mapping[str, Levels] = FACTORS) -> str:
    """Pairs of levels of two factors that no run has."""
    pairs = [pair for pair in TERMS if len(pair) == 2]
    there = {(pair, tuple(cell[factor] for factor in pair)) for cell in cells for pair in pairs}
    wanted = [(pair, levels) for pair in pairs for levels in product(*(factors[factor] for factor in pair))]
    return "; ".join(", ".join(map(str, levels)) for pair, levels in wanted if (pair, levels) not in there)


def read_cells(runs: Runs) -> list[tuple[dict[str, Any], Summary]]:
    """The runs of the crossed cells, with the level of every factor."""
    names = {
        name_cell(write, decay, ceiling): {"write": write, "decay": decay, "ceiling": ceiling}
        for write in WRITES for decay in DECAYS for ceiling in CEILINGS
    }  # fmt: skip
    return [({**names[run.scheme], "rate": run.lr}, run) for run in runs if run.scheme in names]


def seed_noise(cells: Sequence[tuple[dict[str, Any], Summary]]) -> tuple[float, int]:
    """Standard deviation between seeds of one cell and rate, pooled, and its degrees of freedom."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for cell, run in cells:
        found.setdefault(tuple(cell.values()), []).append(run.val_loss)
    several = [values for values in found.values() if len(values) > 1]
    df = sum(len(values) - 1 for values in several)
    return (sqrt(sum(sum((v - fmean(own)) ** 2 for v in own) for own in several) / df), df) if df else (0.0, 0)


def tabulate_effects(fits: Mapping[str, Fit]) -> list[str]:
    levels = [(f, level) for f, every in fits["loss"].factors.items() for level in every if level != AGAINST[f]]
    adjusted = holm([fits["loss"].effect(f, level).p if f != "rate" else None for f, level in levels])
    lines = []
    for (factor, level), p in zip(levels, adjusted, strict=True):
        shown = (with_interval(*fit.effect(factor, level)[:3]) for fit in fits.values())
        lines.append([factor, f"{level} − {AGAINST[factor]}", *shown, "–" if p is None else f"{p:.2g}"])
    asked = (with_interval(*fit.apart("write", "normalise", "geodesic")[:3]) for fit in fits.values())
    lines.insert(len(WRITES) - 1, ["write", "normalise − geodesic (prediction 1, not of the family)", *asked, "–"])
    return markdown_lines(("factor", "effect", *MEASURES.values(), "p, Holm (loss)"), lines)


def tabulate_interactions(fits: Mapping[str, Fit]) -> list[str]:
    """Of every pair of factors the test as a whole, and of the loss its largest difference of differences."""
    lines = []
    for pair in (terms for terms in TERMS if len(terms) == 2):
        others = [[level for level in fits["loss"].factors[f] if level != AGAINST[f]] for f in pair]
        found = {(a, b): fits["loss"].interaction(pair, (a, b)) for a in others[0] for b in others[1]}
        a, b = max(found, key=lambda levels: abs(found[levels].value))
        tests = ["–" if isnan(p := fit.test(pair)) else f"{p:.2g}" for fit in fits.values()]
        lines.append([" x ".join(pair), *tests, f"{a}, {b}", with_interval(*found[a, b][:3])])
    return markdown_lines(("pair", *(f"p of F, {name}" for name in MEASURES), "largest (loss)", "its size"), lines)


def tabulate_beside(runs: Runs) -> list[str]:
    """What is not crossed: decays at the harmonic's summed step, and the controls. Losses by rate; in brackets less the
    harmonic of the same write at the same rate, and the same of that decay at alpha = 1."""
    loss = {(run.scheme, run.lr): run.val_loss for run in runs if usable(run) and run.seed == 0}
    rows = [
        [name_cell(write, decay, "ceiling", equal=True), *(name_cell(write, d, "ceiling") for d in ("harmonic", decay))]
        for write in WRITES for decay in DECAYS if decay != "harmonic"
    ]  # fmt: skip
    lines = []
    for scheme, *others in [*rows, *([control] for control in CONTROLS)]:
        cells = []
        for lr in RATES:
            own = loss.get((scheme, lr))
            base, full = (loss.get((other, lr)) for other in others) if others else (None, None)
            apart = "" if own is None or base is None else f" ({signed(own - base)}"
            apart += "" if not apart else ")" if full is None or base is None else f"; {signed(full - base)})"
            cells.append("–" if own is None else f"{own:.4f}{apart}")
        lines.append([f"`{scheme}`", *cells])
    return markdown_lines(("scheme", *map(rate, RATES)), lines)


def draw_cells(cells: Sequence[tuple[dict[str, Any], Summary]], ceiling: str) -> Chart:
    """Loss of every write against the summed step of its decay, at the rate at which there are all cells."""
    y = Axis.around([run.val_loss for _, run in cells], title="loss (nats per token)")
    x = Axis.around(list(SUMS.values()), log=True, title="summed step, alpha = 1: harmonic, sqrt, linear, constant")
    chart = Chart(ceiling, x, y, looks(list(WRITES)), f"Lines: means at {rate(RATES[1])}. Marks: runs.", legend=True)
    for write in WRITES:
        own = [(SUMS[c["decay"]], run) for c, run in cells if (c["write"], c["ceiling"]) == (write, ceiling)]
        for total in sorted({total for total, _ in own}):
            for _, run in (pair for pair in own if pair[0] == total):
                chart.mark(write, total, run.val_loss, f"{rate(run.lr)}, seed {run.seed}")
        full = [(total, run.val_loss) for total, run in own if run.lr == RATES[1]]
        means = {total: fmean(loss for t, loss in full if t == total) for total, _ in full}
        chart.line(write, sorted(means.items()))
    return chart


def main(experiment: Path) -> None:
    runs = read_runs(experiment)
    every = read_cells(runs)
    high = LEARNT + min((run.val_loss for _, run in every if usable(run)), default=0.0)
    learnt = [(cell, run) for cell, run in every if usable(run) and run.val_loss <= high]
    factors = FACTORS | {"decay": learnt_decays(learnt)}
    cells = [(cell, run) for cell, run in learnt if cell["decay"] in factors["decay"]]
    fitted = {run.run for _, run in learnt}
    lost = [
        f"`{run.scheme}` at {rate(run.lr)}, seed {run.seed} "
        f"({f'{run.val_loss:.2f} nats' if usable(run) else run.status})"
        for _, run in every if run.run not in fitted
    ]  # fmt: skip
    values = {
        "loss": [run.val_loss for _, run in cells],
        "spikes": [log2(1 + run.grad_spikes) for _, run in cells],
    }
    fits = {name: Fit([cell for cell, _ in cells], own, factors) for name, own in values.items()}
    noise, df = seed_noise(cells)
    half = fits["loss"].effect("ceiling", "ceiling")
    left = sqrt(fits["loss"].variance)
    text = [
        f"{len(cells)} runs of the crossed cells. Standard deviation of what the terms leave {left:.4f} nats "
        f"({fits['loss'].df} degrees of freedom), between seeds {noise:.4f} ({df}). Half of the interval of the "
        f"ceiling's effect: {(half.high - half.low) / 2:.4f} nats.",
        f"Left out, as they diverged or end more than {LEARNT} above the lowest: {'; '.join(lost) or 'none'}.",
        f"Decays of the fit, those under which every write learns: {', '.join(factors['decay'])}.",
        "## Main effects", "\n".join(tabulate_effects(fits)),
        "## Interactions of two", "\n".join(tabulate_interactions(fits)),
        "## Decays at equal sums, and controls", "\n".join(tabulate_beside(runs)),
    ]  # fmt: skip
    (experiment / "effects.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print(experiment / "effects.md")
    (experiment / "figures").mkdir(exist_ok=True)
    charts = [draw_cells(learnt, ceiling) for ceiling in CEILINGS]
    print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / "cells.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
