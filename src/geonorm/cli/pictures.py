"""`geonorm schemes --out`: how each scheme moves a token, as a picture."""

from collections.abc import Sequence
from math import cos, pi, sin
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..lab.runs.folder import slug
from ..norms import NormSpec
from ..report.charts import Spec
from ..report.paths import draw_paths
from ..report.render import Figure
from ..schemes import Parts, Scheme, Site, advance, names, parse, read_at, write_at

BLOCKS = (1, 4)
LENGTHS = (0.25, 0.5, 1.0, 2.0)
"""Of updates, |u| / |x|."""
ANGLE = pi / 3
"""Between x and u."""
DIM, DEPTH, POINTS = 64, 12, 17


def draw_schemes(name: str | None, folder: Path) -> list[Path]:
    """Writes a picture of the scheme, or of each, into the folder: the paths of a token in blocks 1 and 4. Returns the
    files. Raises ConfigError for a scheme that there is not, OSError if nothing can be written."""
    drawn = {slug(each): draw_scheme(each) for each in ([name] if name else names())}
    folder.mkdir(parents=True, exist_ok=True)
    return [Figure(spec).save(folder / f"{stem}.svg") for stem, spec in drawn.items()]


def draw_scheme(name: str) -> Spec:
    """The picture of a scheme: one whose step is 0 at first is drawn with another initial value or later in training,
    and says so."""
    scheme = parse(name)
    if scheme.about.figure_of and scheme == type(scheme)():
        name, scheme = scheme.about.figure_of, parse(scheme.about.figure_of)
    step = round(scheme.about.figure_at * getattr(scheme, "steps", 0))
    blocks = {t: follow_write(scheme, t, step=step) for t in BLOCKS}
    return draw_paths(f"{name}, step {step:,}" if step else name, scheme.about.equation.replace("`", ""), blocks, ANGLE)


class TokenPath(NamedTuple):
    """Of one token under one update: points (along x, across it) in the plane of x and u, from h = 0 to h = 1, in
    lengths of the x that entered."""

    length: float
    points: list[tuple[float, float]]
    clamped: bool


@torch.no_grad()
def follow_write(scheme: str | Scheme, t: int, lengths: Sequence[float] = LENGTHS, step: int = 0) -> list[TokenPath]:
    """The way from x to x' as the step h of `write` grows from 0 to 1, of a token for each length |u| / |x| of the
    update, which stands at 60 degrees to it, at the attention of block t (from 1 on) of 12, with the scheme's initial
    values; fp64. Of several streams it follows the one that measurements are about; a scheme that changes over training
    is drawn after so many optimizer steps. Raises ConfigError for another t."""
    rule = parse(scheme)
    first, site = Site(0, "entry", DEPTH), Site(t - 1, "attn", DEPTH)
    # orthogonal, and their components sum to 0: a scheme may take the mean out
    along = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(DIM // 2)
    across = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64).repeat(DIM // 4)
    sizes = torch.tensor(lengths, dtype=torch.float64).unsqueeze(-1)
    entry, part = rule.resolve(first), rule.resolve(site)
    x = entry.enter(along.expand(len(lengths), DIM), parts_after(entry, first, step)(), first)
    radius = part.seen(x)[0] @ along / DIM  # in lengths of the embedding; nGPT's stream is shorter, for one
    u = sizes * radius * (cos(ANGLE) * along + sin(ANGLE) * across)
    p = parts_after(part, site, step)()
    _, carry = read_at(part, x, p, site)
    hit = part.clamped(x, u, p, site)
    clamped = [False] * len(lengths) if hit is None else hit.tolist()
    steps = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64).tolist()
    ways = torch.stack([part.seen(write_at(part, x, u, p, site, h, carry=carry)) for h in steps], dim=1)
    points: Tensor = torch.stack((ways @ along, ways @ across), dim=-1) / (DIM * radius)
    rows = [[(a, b) for a, b in row] for row in points.tolist()]
    return [TokenPath(*row) for row in zip(lengths, rows, clamped, strict=True)]


def parts_after(scheme: Scheme, site: Site, step: int) -> Parts:
    """The parts of a site in full dimension, advanced by so many optimizer steps."""
    parts = Parts(scheme, site, NormSpec("rms", DIM, gains=False, eps=0.0)).double()
    advance(parts, step)
    return parts
