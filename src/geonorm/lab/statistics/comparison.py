"""The statistics of the comparison protocol: pure functions of numbers and of runs' summaries.

Runs that share a seed share their data order and their initialisation, so schemes are compared by the *paired*
difference of each seed. Beside it stands the difference with moderated variances (moderated.py). Nothing here imports
torch, and a run that did not finish is counted, never dropped.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, nctdtr, stdtrit

from ..runs.records import ComparisonRow, Summary
from .moderated import (
    LEVEL,
    MARGIN,
    Contrast,
    Estimate,
    contrast,
    equal_p,
    find_wider,
    fit_prior,
    holm,
    moderate,
    two_sided_p,
)
from .synthesis import ZERO

SEED_CAP = 1000  # `seeds_needed` returns SEED_CAP + 1 for "more than SEED_CAP"


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
        """True if the interval leaves 0 outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_interval(differences: ArrayLike) -> Interval:
    """Student-t interval of the mean of paired per-seed differences (or of any independent values)."""
    values = np.asarray(differences, dtype=float)
    n = values.size
    mean = float(values.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, None, None, None, n)
    std = float(values.std(ddof=1))
    error = std / math.sqrt(n)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    return Interval(mean, mean - half, mean + half, std, n, two_sided_p(mean, error, n - 1))


def difference_of(loss: float, base: float) -> float:
    """loss − base; 0 where they differ by rounding alone: sums in another order do, by less than 1e-12 of them."""
    return 0.0 if math.isclose(loss, base, rel_tol=1e-12) else loss - base


def seeds_needed(differences: ArrayLike) -> int | None:
    """Seeds with which a two-sided 5 % paired t-test finds a difference of the observed size with power 0.8.

    The answer takes the observed mean and spread for the true ones: with few seeds it is an order of
    magnitude. None where they say nothing (fewer than two values, no spread, mean 0); SEED_CAP + 1 means
    "more than SEED_CAP".
    """
    mean, _, _, std, *_ = paired_interval(differences)
    if not std or not mean or not math.isfinite(mean / std):
        return None
    return 2 + bisect_left(range(2, SEED_CAP + 1), 0.8, key=lambda n: _power(abs(mean / std), n))


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
    rank = max((k for k in range(1, n) if 2 * bdtr(k - 1, n, 0.5) <= 1 - LEVEL), default=0)
    median = float(np.median(values))
    return (median, float(values[rank - 1]), float(values[n - rank])) if rank else (median, None, None)


def usable(run: Summary) -> bool:
    """True if a run finished with a finite validation loss."""
    return run.status == "finished" and run.val_loss is not None and math.isfinite(run.val_loss)


def ending(run: Summary) -> str:
    """The status of a run; one that finished without a finite validation loss has diverged."""
    return "diverged" if run.status == "finished" and not usable(run) else run.status


class Choice(NamedTuple):
    """The best learning rate of a scheme, the grid it was chosen from, and the runs that count."""

    lr: float | None
    lrs: dict[float | None, float | None]
    interior: bool | None
    runs: list[Summary]
    tried: list[Summary]
    """The runs whose means `lrs` holds: those of the tuning, or final ones."""


def choose(summaries: Sequence[Summary]) -> Choice:
    """Pick the learning rate of one scheme and the finished runs that enter its mean.

    Losses of one length decide: those of phase "tune" where every rate with a finished final run has been tuned, else
    those of the final runs, whose rates then are the grid. Only final runs enter the mean, and of them only those as
    long as the longest that finished: the mean of two lengths is the loss of neither. Rates are ranked by what their
    seeds share: one that has fewer seeds is neither helped nor hurt by their luck. A rate at which a run diverged comes
    after every rate at which none did, and ends the grid like any other rate that was tried. Where multipliers of the
    rate were tuned, runs with others than those of the best final run are left out.
    """
    summaries = at_best_multipliers(summaries)
    tune = _longest([run for run in summaries if run.phase == "tune"])
    final = _longest([run for run in summaries if run.phase != "tune"])
    ended = {run.lr for run in final if usable(run)}
    tuned = bool(tune) and ended <= {run.lr for run in tune}
    grid = sorted({run.lr for run in (tune + final if tuned else final)}, key=lambda lr: (lr is None, lr))
    tried = tune if tuned else final
    lrs = {lr: _mean_loss(tried, lr) for lr in grid}
    ranked = _level_losses(tried)
    candidates = [lr for lr in grid if lr in ended]
    if not candidates:
        return Choice(None, lrs, None, [], tried)
    diverged = {run.lr for run in summaries if ending(run) == "diverged"}
    best = min(candidates, key=lambda lr: (lr in diverged, ranked.get(lr, math.inf)))
    interior = None if len(grid) < 2 else best not in (grid[0], grid[-1])
    return Choice(best, lrs, interior, [run for run in final if usable(run) and run.lr == best], tried)


def at_best_multipliers(summaries: Sequence[Summary]) -> list[Summary]:
    """The runs that have the same multipliers as the best final run; all runs where no final run finished."""
    final = (run for run in summaries if usable(run) and run.phase != "tune")
    best = min(final, key=lambda run: run.val_loss or 0.0, default=None)
    return [run for run in summaries if best is None or run.rates == best.rates]


def _longest(runs: list[Summary]) -> list[Summary]:
    """The runs without those that finished with fewer tokens than the longest finished run."""
    longest = max((run.tokens or 0 for run in runs if usable(run)), default=0)
    return [run for run in runs if not usable(run) or (run.tokens or 0) == longest]


def _mean_loss(runs: Sequence[Summary], lr: float | None) -> float | None:
    ends = _finite([run for run in runs if usable(run) and run.lr == lr], "val_loss")
    return float(np.mean(ends)) if ends else None


def _level_losses(summaries: Sequence[Summary]) -> dict[float | None, float]:
    """Loss by rate as if all rates had the same seeds, up to a constant: a least-squares fit of loss = rate + seed.
    Plain means where all rates have the same seeds, or where the seeds do not connect the rates."""
    ends = [run for run in summaries if usable(run)]
    seeds: dict[float | None, list[int | None]] = {}
    for run in ends:
        seeds.setdefault(run.lr, []).append(run.seed)
    means = {lr: float(np.mean(_finite([run for run in ends if run.lr == lr], "val_loss"))) for lr in seeds}
    if len(set(map(frozenset, seeds.values()))) < 2:
        return means
    every = list(dict.fromkeys(run.seed for run in ends))
    design = [[*(run.lr == lr for lr in seeds), *(run.seed == seed for seed in every)] for run in ends]
    solution, _, rank, _ = np.linalg.lstsq(np.array(design, float), _finite(ends, "val_loss"), rcond=None)
    connected = rank == len(seeds) + len(every) - 1
    return dict(zip(seeds, map(float, solution), strict=False)) if connected else means


def significant(p: float | None) -> bool:
    """True if a p is below 5 %."""
    return p is not None and p < 1 - LEVEL


def aggregate(
    summaries: Sequence[Summary],
    baseline: str | None = None,
    margin: float = MARGIN,
    absent: bool = False,
) -> list[ComparisonRow]:
    """Return one row per scheme, in order of first appearance, each at its best learning rate.

    Differences are to `baseline` (default: the first scheme), paired by seed; ValueError where it has no run, unless it
    may be `absent`: then no row has a difference. `p_holm` counts them as one family, which `family` names.
    `moderated_...` is the difference of the two means under variances that the spreads of all schemes moderate, and
    `equal` is True if it lies within `margin` (two one-sided tests). `failed` counts every run that did not
    finish, and `statuses` says how each ended.
    """
    groups: dict[str, list[Summary]] = {}
    for run in summaries:
        groups.setdefault(run.scheme, []).append(run)
    if not groups:
        return []
    reference = next(iter(groups)) if baseline is None else baseline
    if reference not in groups and not absent:
        raise ValueError(f"no run of the baseline {reference!r}; there are {', '.join(groups)}")
    counted = {scheme: choose(group).runs for scheme, group in groups.items()}
    means = {scheme: paired_interval(list(_by_seed(runs).values())) for scheme, runs in counted.items()}
    base = _by_seed(counted.get(reference, []))
    pairs = {
        scheme: [
            difference_of(loss, base[seed])
            for seed, loss in _by_seed(runs).items()
            if seed in base and scheme != reference
        ]
        for scheme, runs in counted.items()
    }
    moderated = _moderate(means, reference)
    p_holm = holm([paired_interval(values).p for values in pairs.values()])
    count = sum(len(values) > 1 for values in pairs.values())
    family = f"{count} paired {'difference' if count == 1 else 'differences'} to {reference}"
    rows = []
    for place, (scheme, group) in enumerate(groups.items()):
        choice, runs, loss = choose(group), counted[scheme], means[scheme]
        difference, contrasted = paired_interval(pairs[scheme]), moderated[scheme]
        compared = bool(pairs[scheme])
        bpb, accuracy = _finite(runs, "val_bpb"), _finite(runs, "val_accuracy")
        p = None
        if difference.std is not None:
            paired = Estimate(difference.mean, difference.std**2 / difference.n, difference.n - 1)
            p = equal_p(contrast(paired, ZERO), margin)
        rows.append(
            ComparisonRow(
                scheme=scheme,
                baseline=reference,
                n=loss.n,
                lr=choice.lr,
                lr_interior=choice.interior,
                lrs=choice.lrs,
                val_loss_mean=loss.mean if runs else None,
                val_loss_std=loss.std,
                val_loss_low=loss.low,
                val_loss_high=loss.high,
                val_bpb_mean=float(np.mean(bpb)) if bpb else None,
                val_accuracy_mean=float(np.mean(accuracy)) if accuracy else None,
                difference=difference.mean if compared else 0.0 if scheme == reference and runs else None,
                difference_low=difference.low,
                difference_high=difference.high,
                difference_std=difference.std,
                pairs=len(pairs[scheme]),
                resolved=difference.resolved,
                seeds_needed=seeds_needed(pairs[scheme]) if compared else None,
                p=difference.p,
                tokens_per_second=float(np.median(speeds)) if (speeds := _finite(runs, "tokens_per_second")) else None,
                peak_memory_bytes=_largest(runs, "peak_memory_bytes"),
                parameters=_largest(group, "parameters"),
                matmul_parameters=_largest(group, "matmul_parameters"),
                spikes=int(sum(_finite(runs, "spikes"))),
                grad_spikes=int(sum(_finite(runs, "grad_spikes"))),
                failed=sum(not usable(run) for run in group),
                statuses=dict(Counter(ending(run) for run in group)),
                tokens=_largest(runs or group, "tokens"),
                moderated_difference=contrasted and contrasted.difference,
                moderated_low=contrasted and contrasted.low,
                moderated_high=contrasted and contrasted.high,
                moderated_p=contrasted and contrasted.p,
                margin=margin,
                equal_p=p,
                equal=None if p is None else significant(p),
                p_holm=p_holm[place],
                family=family,
                family_size=count,
            )
        )
    return rows


def _moderate(means: Mapping[str, Interval], reference: str) -> dict[str, Contrast | None]:
    """By scheme, the difference of the means under moderated variances; None where the spreads say nothing."""
    known = [mean for mean in means.values() if mean.std is not None]
    prior = fit_prior([(mean.std or 0.0) ** 2 for mean in known], [mean.n - 1 for mean in known])
    if prior is None:
        return dict.fromkeys(means)
    estimates = {}
    for scheme, mean in means.items():
        variance, df = moderate((mean.std or 0.0) ** 2, mean.n - 1, prior)
        estimates[scheme] = Estimate(mean.mean, variance / mean.n, df) if mean.n else None
    base = estimates.get(reference)
    return {
        scheme: contrast(estimate, base, prior.total) if estimate and base and scheme != reference else None
        for scheme, estimate in estimates.items()
    }


def find_scattered(rows: Sequence[ComparisonRow]) -> list[tuple[str, float, float]]:
    """Schemes whose seeds scatter more than those of the others, by an F test: how many times as far, and p after Holm.
    Moderated intervals with such a scheme are too narrow where there are many others, since the spread of these
    dominates. The test has little power: a scheme that it does not find may scatter more, too."""
    known = [(row.scheme, row.val_loss_std, row.n - 1) for row in rows if row.val_loss_std is not None]
    wider = find_wider([std**2 for _, std, _ in known], [df for *_, df in known])
    return [(scheme, *test) for (scheme, *_), test in zip(known, wider, strict=True) if test and significant(test[1])]


def _by_seed(runs: Sequence[Summary]) -> dict[int | None, float]:
    """Validation loss of each seed; a seed that was run twice counts once, with its mean."""
    return {
        seed: float(np.mean(_finite([run for run in runs if run.seed == seed], "val_loss")))
        for seed in dict.fromkeys(run.seed for run in runs)
    }


def _finite(runs: Sequence[Summary], column: str) -> list[float]:
    return [value for run in runs if (value := run.get(column)) is not None]


def _largest(runs: Sequence[Summary], column: str) -> int | None:
    return int(max(values)) if (values := _finite(runs, column)) else None
