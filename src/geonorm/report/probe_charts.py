"""Charts of a probe: what each site and each norm of a model does, over depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..decay import schedule
from .probe import Geometry, Row, norm_rows
from .series import spread_evenly
from .style import figures
from .vega import Axis, Chart

SHADED = "Shaded: middle half of tokens."


class Line(NamedTuple):
    """A column over depth; `low` and `high` are the columns of its band, `kind` how it is drawn."""

    key: str
    low: str = ""
    high: str = ""
    kind: str = "line"


def middle_half(key: str) -> Line:
    return Line(key, f"{key}_p25", f"{key}_p75")


Rows = Callable[[str], Sequence[Row]]


def over_depth(
    found: Geometry, title: str, unit: str, lines: Sequence[Line], rows: Rows, note: str = "", log: bool = False
) -> list[Chart]:
    """Columns of rows over the block in which they stand, a line per series; nothing where no series has the first."""
    drawn: dict[str, list[tuple[float, Row]]] = {}
    for name in found.names:
        seen = rows(name)
        drawn[name] = list(zip(spread_evenly([row["t"] for row in seen]), seen, strict=True))
    columns = [column for line in lines for column in (line.key, line.low, line.high) if column]
    values = [row[c] for points in drawn.values() for _, row in points for c in columns if row.get(c) is not None]
    first = [t for points in drawn.values() for t, row in points if row.get(lines[0].key) is not None]
    if not first or (log and not any(value > 0 for value in values)):
        return []
    y = Axis.around(values, log=log, margin=0.06, title=unit + (", logarithmic" if log else ""))
    blocks = range(math.floor(min(first)), math.floor(max(first)) + 1)
    labels = blocks[:: math.ceil(len(blocks) / 12)]
    chart = Chart(title, Axis(blocks[0] - 0.25, blocks[-1] + 1, title="block t", labels=labels), y, found.looks, note)
    for name, points in drawn.items():
        for line in lines:
            known = [(t, row) for t, row in points if row.get(line.key) is not None]
            ends = [(t, row.get(line.low), row.get(line.high)) for t, row in points]
            chart.band(name, [(t, low, high) for t, low, high in ends if low is not None and high is not None])
            chart.line(name, [(t, row[line.key]) for t, row in known], line.kind)
            for t, row in known if line.kind == "line" else ():
                place = f"block {math.floor(t)} {row.get('kind') or ''}".strip()
                chart.mark(name, t, row[line.key], f"{name} · {place}: {figures(row[line.key])}")
    return [chart]


def sites(title: str, key: str, unit: str, log: bool, note: str = SHADED) -> Callable[[Geometry], list[Chart]]:
    """A column of the trace over depth."""

    def draw(found: Geometry) -> list[Chart]:
        return over_depth(found, title, unit, [middle_half(key)], lambda name: found.sites.get(name, []), note, log)

    return draw


def attending(found: Geometry, key: str) -> Callable[[str], list[Row]]:
    """By model, the sites whose attention was seen."""
    return lambda name: [row for row in found.sites.get(name, []) if row.get(key) is not None]


def attention_sink(found: Geometry) -> list[Chart]:
    """Attention to the first token, with the head that gives most, and what even attention would give."""
    lines = [Line("attn_first"), Line("attn_first_head", kind="thin"), Line("attn_first_null", kind="dotted")]
    note = "Mean over heads; thin: the head that gives most; dotted: even attention to all that is seen."
    seen = attending(found, "attn_first")
    return over_depth(found, "Attention to the first token", "share of attention", lines, seen, note)


def attention_scores(found: Geometry) -> list[Chart]:
    """The largest score of a query and a key: where it grows, attention becomes one-hot and training unstable."""
    note, seen = "The largest of all heads and tokens read.", attending(found, "attn_logit")
    return over_depth(found, "Largest attention score", "what enters the softmax", [Line("attn_logit")], seen, note)


def layer_likeness(found: Geometry) -> list[Chart]:
    """Cosine and CKA of the stream in front of each block to the stream at the end."""

    def to_the_end(name: str) -> list[Row]:
        rows = found.layers.get(name, [])
        end = max((row["second"] for row in rows), default=None)
        return [{**row, "t": row["first"] + 1} for row in rows if row["second"] == end]

    charts = []
    for key, title, unit in (("cos", "Cosine to the last stream", "mean cosine"),
                             ("cka", "Likeness to the last stream", "linear CKA, without bias")):  # fmt: skip
        charts += over_depth(found, title, unit, [Line(key)], to_the_end, "In front of block t; 0: nothing in common.")
    return charts


def implied_steps(found: Geometry) -> list[Chart]:
    """Implied step size over depth, mean of a block's sites, on linear and on logarithmic axes, with its law."""
    drawn = {name: block_means(found.sites.get(name, []), "ratio") for name in found.names}
    points = [point for rows in drawn.values() for point in rows]
    if not points:
        return []
    end = max(t for t, _ in points)
    charts = []
    for log in (False, True):
        note = "Dotted: the law that it follows, a power of t where it follows none."
        title = "Implied step size" + (": powers are straight" if log else "")
        x = Axis(1 if log else 0.5, end * 1.1 if log else end + 0.5, log=log, title="block t" + ", logarithmic" * log)
        positive = [value for _, value in points if value > 0 or not log]
        y = Axis.around(positive, log=log, margin=0.1, title="tangential / |x|, mean of a block" + ", log" * log)
        chart = Chart(title, x, y, found.looks, note)
        for name, rows in drawn.items():
            law = found.schedule(name)
            if rows and law:
                grid = [1 + (len(rows) - 1) * k / 60 for k in range(61)]
                chart.line(name, [(t, evaluate_law(law, t, len(rows))) for t in grid], "dotted")
            for t, value in rows:
                chart.mark(name, t, value, f"{name} · block {t}: {figures(value)}")
        charts.append(chart)
    return charts


def block_means(rows: Sequence[Row], key: str) -> list[tuple[int, float]]:
    """(block, mean of a column over its sites)."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.get(key) is not None:
            found.setdefault(row["t"], []).append(row[key])
    return [(t, sum(values) / len(values)) for t, values in sorted(found.items())]


def evaluate_law(law: Row, t: float, depth: int) -> float:
    """The fitted law at block t."""
    best, power = law["best"], law["power"]
    kind, alpha = (power["exponent"], power["alpha"]) if best == "none" else (best, law[best]["alpha"])
    fitted: float = schedule(kind, alpha, t, depth)
    return fitted


def norm_rotation(found: Geometry) -> list[Chart]:
    """Degrees that each norm turns tokens by, as it is and without gain and bias."""

    def in_degrees(name: str) -> list[Row]:
        return [
            {k: math.degrees(v) if k.startswith("rotation") and isinstance(v, float) else v for k, v in row.items()}
            for row in norm_rows(found, name)
        ]

    charts = []
    for key, which in (("rotation", "with"), ("rotation_plain", "without")):
        title = f"Rotation by each norm, {which} gain and bias"
        charts += over_depth(found, title, "degrees", [middle_half(key)], in_degrees, SHADED)
    return charts


def towards_uniform(found: Geometry) -> list[Chart]:
    """|cos| to the uniform vector in front of each norm and behind it, with the null."""
    note = "Band: 5 to 95 % of 64 random directions; thin: the direction that tokens share most."
    charts = []
    for end in ("before", "after"):
        lines = [
            Line(f"cos_ones_{end}", f"cos_null_low_{end}", f"cos_null_high_{end}"),
            Line(f"cos_principal_{end}", kind="thin"),
        ]
        title = f"Towards the uniform vector {end} each norm"
        charts += over_depth(found, title, "|cos| to (1, ..., 1)", lines, lambda name: norm_rows(found, name), note)
    return charts


def depth_use(found: Geometry) -> list[Chart]:
    """Loss without one block, and against the angle between the ends of what is left out."""
    if not any(found.ablation.values()):
        return []

    def one(name: str) -> list[Row]:
        return [{**row, "t": row["first"] + 1} for row in found.ablation.get(name, []) if row["blocks"] == 1]

    unit = "loss added (nats per token)"
    left = over_depth(found, "Loss without block t", unit, [middle_half("increase")], one)
    rows = [(name, row) for name in found.names for row in found.ablation.get(name, [])]
    x = Axis.around([row["angle"] for _, row in rows], title="angle from x before to x after (radians)")
    y = Axis.around([row["increase"] for _, row in rows], title=unit)
    right = Chart("Loss without blocks in a row", x, y, found.looks, "By how far these blocks turn the stream.")
    for name, row in rows:
        blocks = f"{row['blocks']} from block {row['first'] + 1}"
        right.mark(name, row["angle"], row["increase"], f"{name} · without {blocks}: {figures(row['increase'])} nats")
    return [*left, right]


FIGURES: dict[str, tuple[str, tuple[Callable[[Geometry], list[Chart]], ...]]] = {
    "norms": (
        "Length of stream and update",
        (
            sites("Length of the stream", "radius", "|x|", True),
            sites("Length of the update", "update_norm", "|u|", True),
        ),
    ),
    "steps": ("Implied step size", (implied_steps,)),
    "rotation": ("Rotation by each norm", (norm_rotation,)),
    "uniform": ("The uniform vector", (towards_uniform,)),
    "tokens": (
        "Tokens among themselves",
        (
            sites("Likeness of tokens", "cos_pair", "cosine between tokens", False, ""),
            sites("Effective rank of the tokens", "effective_rank", "effective rank", True, ""),
        ),
    ),
    "massive": (
        "Large activations and the sphere",
        (
            sites("Large activations", "peak", "max |x_i| / rms", True),
            sites("Spread of lengths", "radius_cv", "spread of |x| / mean", True),
            sites("Resultant length of directions", "resultant", "resultant length", False),
        ),
    ),
    "first_token": ("The first token", (attention_sink,)),
    "attention": ("Attention scores", (attention_scores,)),
    "layers": ("Likeness of depths", (layer_likeness,)),
    "clamped": ("Tokens at the ceiling", (sites("Clamped tokens", "clamped", "share of tokens", False, ""),)),
    "gradients": (
        "Gradient norms",
        (
            sites("Gradient of all weights of a site", "grad_norm", "gradient norm", True, "One batch."),
            sites("Gradient of matrices before the last (W1)", "grad_w1", "gradient norm", True, "One batch."),
            sites("Gradient of the last matrix (W2)", "grad_w2", "gradient norm", True, "One batch."),
        ),
    ),
    "depth_use": ("What blocks are worth", (depth_use,)),
}
"""Of each figure its section on the page, and what draws its charts."""


def draw_probe(found: Geometry) -> dict[str, list[Chart]]:
    """The charts of each figure."""
    return {name: [chart for draw in draws for chart in draw(found)] for name, (_, draws) in FIGURES.items()}
