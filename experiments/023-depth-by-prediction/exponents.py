"""How each arm's best rate goes with depth and width: exponents.md.

    python experiments/023-depth-by-prediction/exponents.py > experiments/023-depth-by-prediction/exponents.md

A best rate is the minimum of the parabola, over log rate, through the best of the tuning seed and its neighbours. The
noise of a loss is the standard deviation of fresh seeds, pooled over depths: mostly more than that of one seed.
"""

from math import exp, hypot, isnan, log, nan, sqrt
from pathlib import Path
from statistics import mean, variance

from runs import FACTOR, SEEDS, SIZES, TUNING_SEED, TURNS, read_kept, read_row

runs = read_kept(Path(__file__).parent)
tuning = {name: run for name, run in runs.items() if run.seed == TUNING_SEED}
fresh: dict[str, list[float]] = {}
for name, run in runs.items():
    if run.seed in SEEDS and run.val_loss is not None:
        fresh.setdefault(name.rpartition("-lr")[0], []).append(run.val_loss)
noise = {arm: sqrt(mean(variance(fresh[f"{layers}-{arm}"]) for layers in (4, 12, 36))) for arm in TURNS}


def bottom(size: str, arm: str) -> tuple[float, float]:
    """The logarithm of the best rate and its standard error; NaN where the best is not interior."""
    losses = read_row(tuning, f"{size}-{arm}")
    rates = sorted(losses)
    at = min(range(len(rates)), key=lambda place: losses[rates[place]], default=0)
    if not 0 < at < len(rates) - 1:
        return nan, nan
    low, best, high = (losses[rate] for rate in rates[at - 1 : at + 2])
    bend = low - 2 * best + high
    shift = (low - high) / (2 * bend)
    return log(rates[at]) + log(FACTOR) * shift, log(FACTOR) * noise[arm] * sqrt((1 + 12 * shift**2) / 2) / bend


print(
    "At 36 blocks muse's minimum is chance. ±: one standard error. Noise by arm:",
    *(f"{noise[arm]:.4f}" for arm in noise),
)
for place, (sizes, what) in enumerate(((("4", "12", "36"), "blocks"), (("w32", "4", "w128"), "wide"))):
    titles = " | ".join(str(SIZES[size][place]) for size in sizes)
    print(f"\n| arm | best rate, {titles} {what} | exponent (95 %) | predicted |")
    print("|---|---|---|---|---|---|")
    span = log(SIZES[sizes[-1]][place] / SIZES[sizes[0]][place])
    for arm, turns in TURNS.items():
        bottoms = [bottom(size, arm) for size in sizes]
        cells = " | ".join("" if isnan(at) else f"{exp(at):.2e} ±{100 * error:.0f} %" for at, error in bottoms)
        (first, before), *_, (last, after) = bottoms
        slope, half = (last - first) / span, 2.447 * hypot(before, after) / span  # six degrees of freedom
        measured = "" if isnan(slope) else f"{slope:+.2f} ({slope - half:+.2f} to {slope + half:+.2f})"
        print(f"| {arm} | {cells} | {measured} | {-log(turns[place]) / span:+.2f} |")
