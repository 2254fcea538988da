"""Which runs experiment 007 wants (experiments/programme.py trains them)."""

from collections.abc import Iterable

from programme import Grid, Summaries, settings
from rates import add_runs, plan_rows

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", model__width=64, model__hidden=172, data="books", batch_size=4, steps=4000,
    evaluation__every=1000, evaluation__whole="true", evaluation__average=0.1, evaluation__trace_tokens=4096,
)  # fmt: skip
CLAMPS = {
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
"""Clamps in the other settings, and at 12 layers: at two rates, which claims no minimum."""
RATES = (6e-3, 3e-3, 1.2e-2)
TELLING = ("fan_in-sphere-raw", "neox-embedding-raw")
"""The ends: clamped from the first steps on, and free at first."""


def plan(known: Summaries) -> Grid:
    """The ends with every clamp, their rates by factors of 2 and a second seed at the best; then fewer clamps."""

    def rows(place: str, clamps: Iterable[str], mark: str = "", **extra: object) -> dict[str, list[str]]:
        init, fields = SETTINGS[place]
        schemes = [f"geonorm({fields}, {CLAMPS[clamp]})" for clamp in clamps]
        return {
            f"{place}-{slug(scheme)}{mark}": [*COMMON, *settings(model__init=init, scheme=scheme, **extra)]
            for scheme in schemes
        }

    grid: dict[str, list[str]] = {}
    for place in TELLING:
        grid |= plan_rows(known, rows(place, CLAMPS), RATES, 2)
    for place in SETTINGS:
        for row, words in rows(place, FEWER).items():
            add_runs(grid, row, words, RATES[::2])
    for place in TELLING:
        for row, words in rows(place, FEWER, "-layers", model__layers=12).items():
            add_runs(grid, row, words, RATES[:2])
    return grid
