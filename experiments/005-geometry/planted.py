"""How often the probe names a planted law: of the stream's length (`probes.growth`) and of steps (`probes.schedule`).

python experiments/005-geometry/planted.py

Planted streams grow three times, by increments of r^order that scatter by lognormal factors; planted steps follow
t^-power with lognormal factors. Drifts are of no law: their power changes slowly over depth. 200 draws a row. Writes
planted.csv.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable
from math import exp, log, sqrt
from pathlib import Path

from geonorm.probes.growth import ORDERS, fit_growth
from geonorm.probes.schedule import fit

DRAWS, GROWTH = 200, 3.0
LENGTH_DRIFTS = {
    "drift: sqrt s (1 + log s)": lambda s: sqrt(s) * (1 + log(s)),
    "drift: s/(1 + log s)": lambda s: s / (1 + log(s)),
}
STEP_DRIFTS = {
    "drift: 1/(t (1 + log t))": lambda t: 1 / (t * (1 + log(t))),
    "drift: 1/(sqrt t (1 + log t))": lambda t: 1 / (sqrt(t) * (1 + log(t))),
}
COLUMNS = ("what", "planted", "places", "scatter", "right", "undecided", "none", "wrong", "interval_holds")


def scatter(draw: random.Random, size: float) -> float:
    """A lognormal factor of mean 1 and standard deviation `size`."""
    width = sqrt(log(1 + size**2))
    return exp(draw.gauss(-(width**2) / 2, width))


def stream(order: float, sites: int, size: float, draw: random.Random) -> list[float]:
    whole, walk, found = (GROWTH**order - 1) / order if order else log(GROWTH), 0.0, [1.0]
    for _ in range(sites):
        walk += whole / sites * scatter(draw, size)
        found.append((1 + order * walk) ** (1 / order) if order else exp(walk))
    return found


def drifting(length: Callable[[float], float], sites: int, size: float, draw: random.Random) -> list[float]:
    """The lengths at 1, 2, ... with increments that scatter."""
    found = [length(1.0)]
    for site in range(1, sites + 1):
        found.append(found[-1] + (length(site + 1.0) - length(float(site))) * scatter(draw, size))
    return found


def share(named: Counter[str], truth: str | None) -> list[float]:
    """Named right, undecided, none, and wrongly; where no law was planted, `none` is right."""
    right = named[truth] if truth else named["none"]
    rest = sum(named.values()) - right - named["undecided"] - (named["none"] if truth else 0)
    return [n / DRAWS for n in (right, named["undecided"], named["none"] if truth else 0, rest)]


def holds(low: float | None, truth: float, high: float | None) -> bool:
    return (low is None or low <= truth) and (high is None or truth <= high)


def main() -> None:
    rows: list[list[object]] = []
    for sites in (8, 24, 64):
        for size in (0.1, 0.3, 0.6):
            for law, order in {**ORDERS, "between: 1.5": 1.5, "beyond: 4": 4.0}.items():
                draw = random.Random(0)
                found = [fit_growth(stream(order, sites, size, draw)) for _ in range(DRAWS)]
                fits = [each for each in found if each is not None]
                held = sum(holds(each["low"], order, each["high"]) for each in fits) / DRAWS
                named = share(Counter(each["best"] for each in fits), law if law in ORDERS else None)
                rows.append(["length", law, sites, size, *named, held])
            for law, length in LENGTH_DRIFTS.items():
                draw = random.Random(0)
                drawn = [fit_growth(drifting(length, sites, size, draw)) for _ in range(DRAWS)]
                named = share(Counter(each["best"] for each in drawn if each is not None), None)
                rows.append(["length", law, sites, size, *named, ""])
    for blocks in (4, 12, 32):
        for size in (0.1, 0.3, 0.6):
            for law, power in (("harmonic", 1.0), ("sqrt", 0.5), ("constant", 0.0), ("between: 0.75", 0.75)):
                draw = random.Random(0)
                steps = [
                    fit([(t, 0.3 * t**-power * scatter(draw, size)) for t in range(1, blocks + 1)], blocks)
                    for _ in range(DRAWS)
                ]
                laws = [each for each in steps if each is not None]
                held = sum(holds(each["power"]["low"], power, each["power"]["high"]) for each in laws) / DRAWS
                named = share(Counter(each["best"] for each in laws), None if ":" in law else law)
                rows.append(["step", law, blocks, size, *named, held])
            for law, step in STEP_DRIFTS.items():
                draw = random.Random(0)
                steps = [
                    fit([(t, 0.3 * step(t) * scatter(draw, size)) for t in range(1, blocks + 1)], blocks)
                    for _ in range(DRAWS)
                ]
                named = share(Counter(each["best"] for each in steps if each is not None), None)
                rows.append(["step", law, blocks, size, *named, ""])
    with open(Path(__file__).parent / "planted.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([f"{v:.3g}" if isinstance(v, float) else v for v in row] for row in rows)


if __name__ == "__main__":
    main()
