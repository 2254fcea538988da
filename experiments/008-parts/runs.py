"""Which runs experiment 008 wants (experiments/programme.py trains them)."""

from itertools import product

from programme import Grid, Summaries, settings
from rates import add_runs

from geonorm.lab.runs.folder import slug

LAYERS = 12
COMMON = settings(
    preset="nano", model__width=64, model__hidden=172, model__layers=LAYERS, model__gains="false", data="books",
    batch_size=4, steps=4000, evaluation__every=2000, evaluation__whole="false", evaluation__tokens=262144,
    evaluation__trace_tokens=2048,
)  # fmt: skip
WRITES = {
    "add": "pre({decay}, max_step={step})",
    "tangent": "orthogonal(input=norm, {decay}, max_step={step})",
    "normalise": "post(input=norm, final=norm, {decay}, max_step={step})",
    "geodesic": "geonorm(input=norm, {decay}, max_angle={angle})",
}
"""Cells that differ in the write alone: all read N(x), none has gains, all end in a norm. On the sphere that
norm changes nothing; off it, without one, twelve blocks overflow in their first step."""
CLAMPS = {"clamp": {"step": "pi/4", "angle": "pi/4"}, "free": {"step": "none", "angle": "pi"}}
SUMS = {
    "constant": float(LAYERS),
    "sqrt": sum(t**-0.5 for t in range(1, LAYERS + 1)),
    "harmonic": sum(1 / t for t in range(1, LAYERS + 1)),
    "linear": sum((LAYERS - t + 1) / LAYERS for t in range(1, LAYERS + 1)),
}
"""By decay, of the steps of all blocks at alpha = 1."""
RATES = (3e-3, 6e-3)
"""All cells at the higher; at the lower every second one, which tells all effects of one and two factors apart, and of
the decays that all writes learn with the others, too, for the resolution."""
CONTROLS = ("norm_preserving", "lns", "pre", "pre(entry=embedding)")


def name_cell(write: str, decay: str, clamp: str, equal: bool = False) -> str:
    alpha = f", alpha={SUMS['harmonic'] / SUMS[decay]:.4g}" if equal else ""
    return WRITES[write].format(decay=f"entry=sphere, decay={decay}{alpha}", **CLAMPS[clamp])


def plan(known: Summaries) -> Grid:
    """Every cell at the higher rate, then every second one at the lower; controls at both; at the higher, decays at
    equal sums and a second seed for an eighth of the cells; then the other cells at the lower but constant steps."""
    grid: dict[str, list[str]] = {}

    def add(scheme: str, rate: float, seed: int = 0) -> None:
        add_runs(grid, slug(scheme), [*COMMON, *settings(scheme=scheme)], [rate], [seed])

    cells = list(product(WRITES, SUMS, CLAMPS))
    half = [
        cell for cell, places in zip(cells, product(range(4), range(4), range(2)), strict=True) if not sum(places) % 2
    ]
    for rate, some in zip(RATES[::-1], (cells, half), strict=True):
        for cell in some:
            add(name_cell(*cell), rate)
        for scheme in CONTROLS:
            add(scheme, rate)
    for write, decay in product(WRITES, SUMS):  # at the harmonic's summed step, with the clamp
        if decay != "harmonic":
            add(name_cell(write, decay, "clamp", equal=True), RATES[1])
    for write, decay in product(("add", "geodesic"), ("constant", "harmonic")):  # the noise
        add(name_cell(write, decay, "clamp"), RATES[1], 1)
    for cell in cells:
        if cell not in half and cell[1] != "constant":
            add(name_cell(*cell), RATES[0])
    return grid
