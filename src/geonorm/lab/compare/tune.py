"""The learning rate of each scheme, tuned as the protocol of comparisons asks.

Tuning runs have the full length and a seed that no final run uses; what decides is the validation loss of the final
weights. The best rate has neighbours by factors of sqrt 2 on both sides, out to a factor of 2: so it is interior, and
a second valley of the loss beside the first is seen. Where `optim.rates` names the embedding, its multiplier is tuned,
too, by factors of 4: each is tried around the best rate, until the best multiplier has one on both sides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from math import inf, log, sqrt
from pathlib import Path
from typing import NamedTuple

from ..config import TUNING_SEED, Recipe, TrainConfig
from ..runs.folder import slug
from ..statistics.comparison import usable
from .config import CompareConfig
from .executors import Executor

RATE_FACTORS = [sqrt(2) ** k for k in (-2, -1, 1, 2)]
"""The best learning rate is to have neighbours at these factors."""
SAME_RATE = log(1.1)
"""Rates whose logarithms are closer than this count as one."""
EMBED_FACTOR = 4.0
"""Factor between neighbouring multipliers of the embedding's rate."""
MOST_RATES, MOST_MULTIPLIERS = 16, 6
"""Tuning ends at as many, even if its best is not interior."""


class Rates(NamedTuple):
    """The learning rate of a run, and the multiplier of the embedding's rate where that is tuned."""

    lr: float
    embed: float | None = None


Losses = Mapping[Rates, float]
"""Validation loss by rates; infinite where a run did not finish."""


def tune(
    executor: Executor,
    make_run: Callable[[str, Rates, int], TrainConfig],
    schemes: Sequence[str],
    lrs: Sequence[float],
    embed: float | None = None,
    extend: bool = True,
) -> dict[str, Rates]:
    """Run the tuning runs and return the best rates of each scheme. Schemes that never finish a run are left out, and a
    line says so. make_run: the run of a scheme at some rates, with some seed. embed: as in `missing_trials`. extend:
    False where only `lrs` are tried."""
    losses: dict[str, dict[Rates, float]] = {scheme: {} for scheme in schemes}
    while trials := [
        (scheme, rates) for scheme in schemes for rates in missing_trials(losses[scheme], lrs, embed, extend)
    ]:
        runs = [make_run(scheme, rates, TUNING_SEED) for scheme, rates in trials]
        for (scheme, rates), summary in zip(trials, executor.run(runs), strict=True):
            loss = summary.val_loss
            losses[scheme][rates] = loss if usable(summary) and loss is not None else inf
    best = {scheme: best_rates(losses[scheme]) for scheme in schemes if min(losses[scheme].values()) < inf}
    for scheme in schemes:
        if scheme not in best:
            executor.say(f"{scheme}: no learning rate finished; it gets no final runs")
            continue
        rates = best[scheme]
        multiplier = "" if rates.embed is None else f", embedding {rates.embed:g} times"
        edge = "" if is_interior(losses[scheme], rates) else " (at the end of the grid)"
        executor.say(f"{scheme}: best learning rate {rates.lr:g}{multiplier}{edge}")
    return best


def missing_trials(losses: Losses, lrs: Sequence[float], embed: float | None, extend: bool) -> list[Rates]:
    """The rates to try next for a scheme; an empty list when it is tuned. embed: the first multiplier of the
    embedding's rate, None where that is not tuned."""
    starts: dict[float | None, Sequence[float]] = {rates.embed: () for rates in losses} | {embed: lrs}
    while True:
        trials = []
        for multiplier, start in starts.items():
            tried = {rates.lr: loss for rates, loss in losses.items() if rates.embed == multiplier}
            trials += [Rates(lr, multiplier) for lr in missing_rates(tried, start, extend)]
        best = best_rates(losses) if losses and not trials else Rates(0.0)
        sides = [best.embed * factor for factor in (1 / EMBED_FACTOR, EMBED_FACTOR)] if extend and best.embed else []
        if trials or set(sides) <= set(starts) or len(starts) >= MOST_MULTIPLIERS:
            return trials
        around = [round_rate(best.lr * factor) for factor in (sqrt(0.5), 1, sqrt(2))]
        starts |= {side: around for side in sides if side not in starts}


def missing_rates(losses: Mapping[float, float], start: Sequence[float], extend: bool = True) -> list[float]:
    """The learning rates to try next: those of `start`, then factors of sqrt 2 around the best. None is tried above a
    rate that diverged; where all have diverged, the lowest counts as the best.

    >>> missing_rates({1e-3: 3.2, 2e-3: 3.0, 4e-3: 3.1}, [1e-3, 2e-3, 4e-3])
    [0.00141, 0.00283]
    >>> missing_rates({1e-3: 3.2, 2e-3: 3.0, 4e-3: math.inf, 1.41e-3: 3.1, 2.83e-3: 3.1}, [1e-3, 2e-3, 4e-3])
    []
    """
    if missing := [lr for lr in start if lr not in losses]:
        return missing
    if not extend or len(losses) >= MOST_RATES:
        return []
    best = min(losses, key=lambda lr: (losses[lr], lr))
    diverged = min((lr for lr, loss in losses.items() if loss == inf and lr >= best), default=inf)
    wanted = [round_rate(best * factor) for factor in RATE_FACTORS]
    return [lr for lr in wanted if lr < diverged and all(abs(log(lr / other)) > SAME_RATE for other in losses)]


def best_rates(losses: Losses) -> Rates:
    """The rates of the lowest loss; where several have it, the lowest learning rate."""
    return min(losses, key=lambda rates: (losses[rates], rates.lr))


def is_interior(losses: Losses, best: Rates) -> bool:
    """True if lower and higher learning rates were tried beside the best, and multipliers where they are tuned."""
    lrs = [rates.lr for rates in losses if rates.embed == best.embed]
    multipliers = [rates.embed for rates in losses if rates.embed is not None]
    between = best.embed is None or min(multipliers) < best.embed < max(multipliers)
    return min(lrs) < best.lr < max(lrs) and between


def round_rate(value: float) -> float:
    """Three digits: what a person would type, and the same number in file names, YAML and tables."""
    return float(f"{value:.3g}")


def run_config(config: CompareConfig, scheme: str, rates: Rates, seed: int) -> TrainConfig:
    """One run of a comparison."""
    shared = {f.name: getattr(config, f.name) for f in fields(Recipe)}
    name = f"{slug(scheme)}-lr{rates.lr:g}"
    if rates.embed is not None:
        name += f"-embed{rates.embed:g}"
        multipliers = config.optim.multipliers | {"embed": rates.embed}
        words = [f"{role}={multiplier:g}" for role, multiplier in multipliers.items()]
        shared["optim"] = replace(config.optim, rates=words)
    name += f"-seed{seed}" + ("-tune" if seed == TUNING_SEED else "")
    return TrainConfig(**shared, scheme=scheme, lr=rates.lr, seed=seed, out=str(Path(config.out) / "runs" / name))
