"""Which runs experiment 007 wants (experiments/programme.py trains them)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from programme import Grid, Summaries, settings
from rates import extend, read_losses, tidy

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", model__width=64, model__hidden=172, data="books", batch_size=4, steps=4000,
    evaluation__every=1000, evaluation__whole="true", evaluation__average=0.1, evaluation__trace_tokens=4096,
)  # fmt: skip
CEILINGS = {
    "pi/8": "max_angle=pi/8",
    "pi/4": "max_angle=pi/4",
    "pi/2": "max_angle=pi/2",
    "none": "max_angle=pi",
    "smooth 0.5": "retraction=0.5, max_angle=pi",
    "smooth 1": "retraction=1, max_angle=pi",
}
SETTINGS = {
    "fan_in-sphere-raw": ("fan_in", "entry=sphere"),
    "neox-embedding-raw": ("neox", "entry=embedding"),
    "neox-sphere-raw": ("neox", "entry=sphere"),
    "fan_in-embedding-raw": ("fan_in", "entry=embedding"),
    "neox-embedding-norm": ("neox", "entry=embedding, input=norm"),
    "fan_in-embedding-norm": ("fan_in", "entry=embedding, input=norm"),
}
"""Initialisation, entry, input. On the sphere of radius sqrt(width) the norm of the stream is the stream, but for
gains, and with that entry raw and norm do not differ."""
FEWER = ("pi/8", "pi/4", "none", "smooth 0.5")
"""Ceilings in the other settings, and at 12 layers: at two rates, which claims no minimum."""
RATES = (6e-3, 3e-3, 1.2e-2)
TELLING = ("fan_in-sphere-raw", "neox-embedding-raw")
"""The ends: clamped from the first steps on, and free at first."""


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}

    def add(place: str, scheme: str, rate: float, seed: int = 0, mark: str = "", **extra: object) -> str:
        start = f"{place}-{slug(scheme)}{mark}-lr"
        own = settings(model__init=SETTINGS[place][0], scheme=scheme, lr=f"{rate:g}", seed=seed, **extra)
        grid[f"{start}{rate:g}-seed{seed}"] = [*COMMON, *own]
        return start

    def tune(place: str, scheme: str, seeds: int = 1, rates: Sequence[float] = RATES, **extra: Any) -> None:
        """Rates by octaves until the best is interior; seeds more at that."""
        start = add(place, scheme, rates[0], **extra)
        losses = read_losses([run for name, run in known.items() if name.startswith(start)])
        octaves = extend(losses, rates) if len(rates) > 2 else rates
        for rate in octaves:
            add(place, scheme, tidy(rate), **extra)
        if seeds > 1 and set(octaves) <= set(losses):
            for seed in range(1, seeds):
                add(place, scheme, min(losses, key=losses.__getitem__), seed, **extra)

    for place in TELLING:
        for ceiling in CEILINGS.values():
            tune(place, f"geonorm({SETTINGS[place][1]}, {ceiling})")
    for place in TELLING:
        for ceiling in CEILINGS.values():
            tune(place, f"geonorm({SETTINGS[place][1]}, {ceiling})", seeds=2)
    for place in SETTINGS:
        for ceiling in FEWER:
            tune(place, f"geonorm({SETTINGS[place][1]}, {CEILINGS[ceiling]})", rates=(RATES[0], RATES[2]))
    for place in TELLING:
        for ceiling in FEWER:
            scheme = f"geonorm({SETTINGS[place][1]}, {CEILINGS[ceiling]})"
            tune(place, scheme, rates=RATES[:2], mark="-layers", model__layers=12)
    return grid
