"""Which runs experiment 020 wants (experiments/programme.py trains them)."""

from programme import Grid, Summaries, settings

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", model__width=64, model__hidden=172, model__init="neox", data="books", batch_size=4, steps=4000,
    evaluation__every=1000, evaluation__whole="false", evaluation__tokens=262144, evaluation__average=0.1,
    evaluation__trace_tokens=2048,
)  # fmt: skip
"""The regime `neox` of 016, with the rule of the paper in it: 45 % of the site-tokens are clamped at 6e-3, 54 % at
1.2e-2, by site from none to all."""
FIELDS = (
    "decay=sqrt", "decay=0.75", "decay=linear", "decay=constant", "alpha=0.5", "alpha=2", "decay_on=update",
    "index=sublayer", "entry=sphere", "final=none", "input=norm", "update=norm", "update=unit", "after=norm",
    "retraction=projection", "retraction=cayley", "learn=gain", "learn=affine", "learn=step",
)  # fmt: skip
"""One at a time; clamps are in 007."""
BASE = "geonorm(entry=embedding)"
RATES = (1.2e-2, 6e-3)
SEEDS = 2


def with_field(field: str) -> str:
    """The paper's rule with one field changed."""
    return f"geonorm({field})" if field.startswith("entry") else f"geonorm(entry=embedding, {field})"


def plan(known: Summaries) -> Grid:
    """Every field at both rates, then with a second seed."""
    schemes = (BASE, *map(with_field, FIELDS))
    return {
        f"{slug(scheme)}-lr{rate:g}-seed{seed}": [*COMMON, *settings(scheme=scheme, lr=f"{rate:g}", seed=seed)]
        for seed in range(SEEDS)
        for rate in RATES
        for scheme in schemes
    }
