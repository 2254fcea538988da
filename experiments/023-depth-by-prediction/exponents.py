"""How each arm's best rate goes with depth: exponents.md.

    python experiments/023-depth-by-prediction/exponents.py > experiments/023-depth-by-prediction/exponents.md

A best rate is the minimum of the parabola, over the logarithm of the rate, through the best rate of the tuning seed and
its neighbours. The noise of a loss is the pooled standard deviation of the fresh seeds at one rate. That is more than
the noise of one seed at several rates, so the intervals are rather too wide.
"""

from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, variance

from runs import ARMS, FACTOR, LAYERS, SEEDS, TUNING_SEED, TURNS, read_kept, read_row

runs = read_kept(Path(__file__).parent)
tuning = {name: run for name, run in runs.items() if run.seed == TUNING_SEED}
fresh: dict[str, list[float]] = {}
for name, run in runs.items():
    if run.seed in SEEDS and run.val_loss is not None:
        fresh.setdefault(name.rpartition("-seed")[0], []).append(run.val_loss)
noise = sqrt(mean(variance(losses) for losses in fresh.values() if len(losses) == len(SEEDS)))


def bottom(row: str) -> tuple[float, float]:
    """The logarithm of the best rate and its standard error; NaN where the best is not interior."""
    losses = read_row(tuning, row)
    rates = sorted(losses)
    at = min(range(len(rates)), key=lambda place: losses[rates[place]], default=0)
    if not 0 < at < len(rates) - 1:
        return float("nan"), float("nan")
    low, best, high = (losses[rate] for rate in rates[at - 1 : at + 2])
    bend = low - 2 * best + high
    shift = (low - high) / (2 * bend)
    return log(rates[at]) + log(FACTOR) * shift, log(FACTOR) * noise * sqrt((1 + 12 * shift**2) / 2) / bend


print(f"Noise of a loss {noise:.4f}.\n\n| arm | best rate, 4 | 12 | 36 blocks | exponent, 4 to 36 (95 %) | predicted |")
print("|---|---|---|---|---|---|")
for arm in ARMS:
    bottoms = [bottom(f"{layers}-{arm}") for layers in LAYERS]
    (first, before), *_, (last, after) = bottoms
    depth = log(LAYERS[-1] / LAYERS[0])
    exponent, error = (last - first) / depth, 1.96 * sqrt(before**2 + after**2) / depth
    cells = " | ".join(f"{exp(place):.2e} ±{100 * spread:.0f} %" for place, spread in bottoms)
    span = f"{exponent:+.2f} ({exponent - error:+.2f} to {exponent + error:+.2f})"
    print(
        f"| {arm} | {cells} | {span} | {-log(TURNS[arm]) / depth:+.2f} |".replace("nan ±nan %", "").replace("+nan", "–")
    )
