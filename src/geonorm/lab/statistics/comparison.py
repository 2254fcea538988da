"""The statistics of the comparison protocol: pure functions over numbers and run summaries.

Runs that share a seed share their data order and their initialisation, so schemes are compared by the *paired*
difference of each seed. Beside it stands the difference with moderated variances (significance.py) and, where a scheme
ran at three rates or more, the minimum of a fit over them (rates.py). Nothing here imports torch, and a run that did
not finish is counted, never dropped.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import nctdtr, stdtrit

from .moderated import (
    LEVEL,
    MARGIN,
    Estimate,
    Prior,
    contrast,
    equal_p,
    find_wider,
    fit_prior,
    holm,
    moderate,
    two_sided_p,
)
from .rates import Minimum, Parabola, find_minimum, fit_parabola
from .spikes import count_apart

SEED_CAP = 1000  # seeds_needed answers SEED_CAP + 1 for "more than SEED_CAP"

Summary = Mapping[str, Any]
Row = dict[str, Any]


class Interval(NamedTuple):
    """A mean with its two-sided 95 % interval and the p of its being 0; None where one value gives no spread."""

    mean: float
    low: float | None
    high: float | None
    std: float | None
    n: int
    p: float | None = None

    @property
    def resolved(self) -> bool:
        """Whether the interval leaves 0 outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_interval(differences: ArrayLike) -> Interval:
    """Student-t interval of the mean of paired per-seed differences (or of any independent values)."""
    values = np.asarray(differences, dtype=float)
    n = values.size
    if n == 0:
        return Interval(math.nan, None, None, None, 0)
    mean = float(values.mean())
    if n == 1:
        return Interval(mean, None, None, None, 1)
    std = float(values.std(ddof=1))
    error = std / math.sqrt(n)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    return Interval(mean, mean - half, mean + half, std, n, two_sided_p(mean, error, n - 1))


def seeds_needed(differences: ArrayLike, power: float = 0.8) -> int | None:
    """Seeds with which a two-sided 5 % paired t-test finds a difference of the observed size with this power.

    The answer takes the observed mean and spread for the true ones: with few seeds it is an order of
    magnitude. None where they say nothing (fewer than two values, no spread, mean 0); SEED_CAP + 1 means
    "more than SEED_CAP".
    """
    mean, _, _, std, *_ = paired_interval(differences)
    if not std or not mean or not math.isfinite(mean / std):
        return None
    effect = abs(mean / std)
    return 2 + bisect_left(range(2, SEED_CAP + 1), power, key=lambda n: _power(effect, n))


def _power(effect: float, n: int) -> float:
    """Power of the two-sided 5 % paired t-test with n pairs, for a mean of `effect` standard deviations."""
    critical = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    shift = effect * math.sqrt(n)
    if shift > critical + 30:  # far in the tails nctdtr is inaccurate or NaN
        return 1.0
    wrong_sign = nctdtr(n - 1, shift, -critical) if shift < 5 else 0.0
    return float(1 - nctdtr(n - 1, shift, critical) + wrong_sign)


def ratio_interval(ratios: ArrayLike) -> tuple[float, float | None, float | None]:
    """Median of timing ratios with the 95 % interval of the median that order statistics give.

    It assumes nothing about the distribution: the median lies between the k-th smallest and the k-th largest
    value with probability 1 - 2 P(Binomial(n, 1/2) < k) at least. Fewer than 6 values give no such interval.
    """
    values = np.sort(np.asarray(ratios, dtype=float))
    n = values.size
    if n == 0:
        return math.nan, None, None
    rank, tail = 0, 1  # tail: number of the 2^n outcomes with at most `rank` successes
    while 2 * tail <= (1 - LEVEL) * 2**n:
        rank += 1
        tail += math.comb(n, rank)
    median = float(np.median(values))
    return (median, float(values[rank - 1]), float(values[n - rank])) if rank else (median, None, None)


def usable(summary: Summary) -> bool:
    """Whether a run finished with a finite validation loss."""
    loss = summary.get("val_loss")
    return summary.get("status") == "finished" and isinstance(loss, int | float) and math.isfinite(loss)


def ending(summary: Summary) -> str:
    """The status of a run; one that finished without a finite validation loss has diverged."""
    status = str(summary.get("status", "failed"))
    return "diverged" if status == "finished" and not usable(summary) else status


class Choice(NamedTuple):
    """The learning rate a scheme is judged at, the grid it was chosen from, and the runs that count."""

    lr: float | None
    lrs: dict[float | None, float | None]
    interior: bool | None
    runs: list[Summary]
    tried: list[Summary]
    """The runs whose means `lrs` holds: those of the tuning, or final ones."""


def _longest(runs: list[Summary]) -> list[Summary]:
    """Without those that finished and are shorter than the longest that did."""
    longest = max((run.get("tokens") or 0 for run in runs if usable(run)), default=0)
    return [run for run in runs if not usable(run) or (run.get("tokens") or 0) == longest]


def choose(summaries: Sequence[Summary]) -> Choice:
    """Pick the learning rate of one scheme and the finished runs that enter its mean.

    Losses of one length decide: those of phase "tune" where every rate with a finished final run has been tuned, else
    those of the final runs, whose rates then are the grid. Only final runs enter the mean, and of them only those as
    long as the longest that finished: the mean of two lengths is the loss of neither. Rates are ranked by what their
    seeds share: one that has fewer seeds is neither helped nor hurt by their luck. A rate at which a run diverged comes
    after every rate at which none did, and ends the grid like any other rate that was tried.
    """
    tune = _longest([run for run in summaries if run.get("phase") == "tune"])
    final = _longest([run for run in summaries if run.get("phase") != "tune"])
    ended = {run.get("lr") for run in final if usable(run)}
    tuned = bool(tune) and ended <= {run.get("lr") for run in tune}
    grid = sorted({run.get("lr") for run in (tune + final if tuned else final)}, key=lambda lr: (lr is None, lr))
    tried = tune if tuned else final
    lrs = {lr: _mean_loss(tried, lr) for lr in grid}
    ranked = _level_losses(tried)
    candidates = [lr for lr in grid if lr in ended]
    if not candidates:
        return Choice(None, lrs, None, [], tried)

    def merit(lr: float | None) -> tuple[bool, float]:
        diverged = any(ending(run) == "diverged" and run.get("lr") == lr for run in summaries)
        return diverged, ranked.get(lr, math.inf)

    best = min(candidates, key=merit)
    interior = None if len(grid) < 2 else best not in (grid[0], grid[-1])
    return Choice(best, lrs, interior, [run for run in final if usable(run) and run.get("lr") == best], tried)


def _mean_loss(summaries: Sequence[Summary], lr: float | None) -> float | None:
    losses = [run["val_loss"] for run in summaries if usable(run) and run.get("lr") == lr]
    return float(np.mean(losses)) if losses else None


def _level_losses(summaries: Sequence[Summary]) -> dict[float | None, float]:
    """Loss by rate as if all rates had the same seeds, up to a constant: the least squares of loss = rate + seed. Means
    where they have them, or where no seed connects the rates."""
    ends = [run for run in summaries if usable(run)]
    seeds: dict[float | None, list[Any]] = {}
    for run in ends:
        seeds.setdefault(run.get("lr"), []).append(run.get("seed"))
    means = {lr: float(np.mean([run["val_loss"] for run in ends if run.get("lr") == lr])) for lr in seeds}
    if len(set(map(frozenset, seeds.values()))) < 2:
        return means
    every = list(dict.fromkeys(run.get("seed") for run in ends))
    design = [[*(run.get("lr") == lr for lr in seeds), *(run.get("seed") == seed for seed in every)] for run in ends]
    found, _, rank, _ = np.linalg.lstsq(np.array(design, float), [run["val_loss"] for run in ends], rcond=None)
    connected = rank == len(seeds) + len(every) - 1
    return dict(zip(seeds, map(float, found), strict=False)) if connected else means


def significant(p: float | None) -> bool:
    """Whether a p is below 5 %."""
    return p is not None and p < 1 - LEVEL


def aggregate(
    summaries: Sequence[Summary], baseline: str | None = None, margin: float = MARGIN, absent: bool = False
) -> list[Row]:
    """One row per scheme, in order of first appearance, each at its best learning rate.

    Differences are to `baseline` (default: the first scheme), paired by seed; ValueError where it has no run, unless it
    may be `absent`: then no row has a difference. `p_holm` counts them as one family, which `family` names.
    `moderated_...` is the difference of the two means under variances that the spreads of all schemes moderate, and
    `equal` says whether it lies within `margin` (two one-sided tests). `spikes_apart` and `grad_spikes_apart` are those
    spikes that are not the batch's (spikes.py). `failed` counts every run that did not finish, and `statuses` says how
    each ended.
    """
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(summary["scheme"], []).append(summary)
    if not groups:
        return []
    reference = next(iter(groups)) if baseline is None else baseline
    if reference not in groups and not absent:
        raise ValueError(f"no run of the baseline {reference!r}; there are {', '.join(groups)}")
    choices = {scheme: choose(group) for scheme, group in groups.items()}
    base = choices[reference].runs if reference in choices else []
    rows = [_row(scheme, groups[scheme], choices[scheme], reference, base) for scheme in groups]
    ended = [summary for summary in summaries if usable(summary)]
    for row in rows:
        runs = choices[row["scheme"]].runs
        row |= {f"{kind}_apart": count_apart(runs, ended, kind) for kind in ("spikes", "grad_spikes")}
    _moderate(rows, reference, margin)
    _fit(rows, groups, reference)
    for key in ("p", "moderated_p"):
        for row, p in zip(rows, holm([row[key] for row in rows]), strict=True):
            row[f"{key}_holm"] = p
    count = sum(row["p"] is not None for row in rows)
    family = f"{count} paired {'difference' if count == 1 else 'differences'} to {reference}"
    return [row | {"family": family, "family_size": count} for row in rows]


def _moderate(rows: list[Row], reference: str, margin: float) -> None:
    """Adds what the spreads of all schemes say about each difference; None where they say nothing."""
    known = [row for row in rows if row["val_loss_std"] is not None]
    prior = fit_prior([row["val_loss_std"] ** 2 for row in known], [row["n"] - 1 for row in known])
    means = {row["scheme"]: _moderated_mean(row, prior) for row in rows}
    base = means.get(reference)
    for row in rows:
        own = means[row["scheme"]]
        found = contrast(own, base, prior.total) if prior and own and base and row["scheme"] != reference else None
        p = equal_p(found, margin) if found else None
        numbers = found[:4] if found else (None,) * 4
        row |= zip([f"moderated_{name}" for name in ("difference", "low", "high", "p")], numbers, strict=True)
        row |= {"margin": margin, "equal_p": p, "equal": None if p is None else significant(p)}


def find_scattered(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Schemes whose seeds scatter more than those of the others, by an F test: how many times as far, and p by Holm.
    Moderated intervals with such a scheme are too narrow where there are many others, whose spread is most of theirs; a
    scheme that is not named may be one, too."""
    known = [row for row in rows if row["val_loss_std"] is not None]
    found = find_wider([row["val_loss_std"] ** 2 for row in known], [row["n"] - 1 for row in known])
    return [(row["scheme"], *wider) for row, wider in zip(known, found, strict=True) if wider and significant(wider[1])]


def _moderated_mean(row: Row, prior: Prior | None) -> Estimate | None:
    if prior is None or not row["n"]:
        return None
    variance, df = moderate((row["val_loss_std"] or 0.0) ** 2, row["n"] - 1, prior)
    return Estimate(row["val_loss_mean"], variance / row["n"], df)


def _fit(rows: list[Row], groups: Mapping[str, Sequence[Summary]], reference: str) -> None:
    """Adds `fit`, the minimum of a parabola through all of a scheme's runs of full length; None without three rates."""
    curves = {scheme: _parabola(group) for scheme, group in groups.items()}
    known = [curve for curve in curves.values() if curve]
    prior = fit_prior([curve.variance for curve in known], [curve.df for curve in known])
    minima = {
        scheme: find_minimum(curve, *(moderate(curve.variance, curve.df, prior) if prior else ()))
        for scheme, curve in curves.items()
        if curve
    }
    base = minima.get(reference)
    for row in rows:
        found = minima.get(row["scheme"])
        other = base if row["scheme"] != reference else None
        row["fit"] = found and _minimum_row(found, other, prior.total if prior else math.inf)


def _parabola(group: Sequence[Summary]) -> Parabola | None:
    """Through the final runs of the longest length, and tuning runs of that length, at rates at which none diverged; a
    seed that was run twice at a rate counts once, with its mean."""
    lost = {run.get("lr") for run in group if ending(run) == "diverged"}
    runs = [run for run in group if usable(run) and run.get("lr") and run["lr"] not in lost]
    final = [run for run in runs if run.get("phase") != "tune"]
    longest = max((run.get("tokens") or 0 for run in final or runs), default=0)
    runs = [run for run in runs if (run.get("tokens") or 0) == longest]
    losses: dict[Any, list[float]] = {}
    for run in runs:
        losses.setdefault((run["lr"], run.get("seed")), []).append(run["val_loss"])
    return fit_parabola([lr for lr, _ in losses], [float(np.mean(values)) for values in losses.values()])


def _minimum_row(found: Minimum, base: Minimum | None, most: float) -> Row:
    """The minimum as results.json has it; its difference is to the baseline's own minimum, with `most` degrees of
    freedom at most."""
    loss, other = found.loss, base.loss if base else None
    found_contrast = contrast(loss, other, most) if loss and other and loss.df and other.df else None
    difference, low, high, p = found_contrast[:4] if found_contrast else (None,) * 4
    return {
        "lr": found.lr,
        "lr_low": found.lr_low,
        "lr_high": found.lr_high,
        "log_lr_error": found.log_error,
        "loss": loss.value if loss else None,
        "loss_error": math.sqrt(loss.error2) if loss and loss.df else None,
        "difference": difference,
        "difference_low": low,
        "difference_high": high,
        "p": p,
        "problem": found.problem,
    }


def _row(scheme: str, group: list[Summary], choice: Choice, reference: str, base: list[Summary]) -> Row:
    runs = choice.runs
    own, other = _by_seed(runs), _by_seed(base)
    loss = paired_interval(list(own.values()))
    differences = [own[seed] - other[seed] for seed in own if seed in other]
    difference = paired_interval(differences)
    is_reference = scheme == reference
    compared = bool(differences) and not is_reference
    bpb, accuracy = (_finite(runs, key) for key in ("val_bpb", "val_accuracy"))
    return {
        "scheme": scheme,
        "baseline": reference,
        "n": loss.n,
        "lr": choice.lr,
        "lr_interior": choice.interior,
        "lrs": choice.lrs,
        "val_loss_mean": loss.mean if runs else None,
        "val_loss_std": loss.std,
        "val_loss_low": loss.low,
        "val_loss_high": loss.high,
        "val_bpb_mean": float(np.mean(bpb)) if bpb else None,
        "val_accuracy_mean": float(np.mean(accuracy)) if accuracy else None,
        "difference": difference.mean if compared else 0.0 if is_reference and runs else None,
        "difference_low": difference.low if compared else None,
        "difference_high": difference.high if compared else None,
        "difference_std": difference.std if compared else None,
        "pairs": len(differences) if compared else 0,
        "resolved": compared and difference.resolved,
        "seeds_needed": seeds_needed(differences) if compared else None,
        "p": difference.p if compared else None,
        "tokens_per_second": _median(runs, "tokens_per_second"),
        "step_cost": None,  # runs share a machine, so their speeds say nothing; `geonorm bench train` measures costs
        "peak_memory_bytes": max(_finite(runs, "peak_memory_bytes"), default=None),
        "parameters": _largest(group, "parameters"),
        "matmul_parameters": _largest(group, "matmul_parameters"),
        "spikes": int(sum(_finite(runs, "spikes"))),
        "grad_spikes": int(sum(_finite(runs, "grad_spikes"))),
        "failed": sum(not usable(run) for run in group),
        "statuses": dict(Counter(ending(run) for run in group)),
        "tokens": _largest(runs or group, "tokens"),
    }


def _by_seed(runs: Sequence[Summary]) -> dict[Any, float]:
    """Validation loss of each seed; a seed that was run twice counts once, with its mean."""
    losses: dict[Any, list[float]] = {}
    for run in runs:
        losses.setdefault(run.get("seed"), []).append(run["val_loss"])
    return {seed: float(np.mean(values)) for seed, values in losses.items()}


def _finite(runs: Sequence[Summary], key: str) -> list[float]:
    values = (run.get(key) for run in runs)
    return [value for value in values if value is not None and math.isfinite(value)]


def _median(runs: Sequence[Summary], key: str) -> float | None:
    values = _finite(runs, key)
    return float(np.median(values)) if values else None


def _largest(runs: Sequence[Summary], key: str) -> int | None:
    values = _finite(runs, key)
    return int(max(values)) if values else None
