"""The block diagram of a scheme, drawn from what its definition does to numbers.

A norm stands where scaling the input changes nothing; a turn stands where the length of the token is what it was; the
weights of an addition are those that give the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import geonorm
from geonorm.cli.pictures import follow_write
from geonorm.norms import NormSpec
from geonorm.report.style import looks
from geonorm.schemes import Parts, Scheme, read_at, write_at

DIM, SITE = 8, geonorm.Site(3, "attn", 12)


@dataclass(frozen=True)
class Block:
    """streams: those of the hidden state; 0 where it is a history. opaque: read and write are drawn as boxes. before,
    update, after: whether N stands before the sub-layer, on its output, on the sum. tangential: the part of the output
    along the token is taken off. turn: the token turns and keeps its length. weights: of x and of the output in the
    sum, learned: at first. share: factor behind the first N."""

    streams: int = 1
    opaque: bool = False
    before: bool = False
    update: bool = False
    tangential: bool = False
    after: bool = False
    turn: bool = False
    weights: tuple[str, str] = ("", "")
    share: str = ""


def look(scheme: Scheme) -> Block:
    """What one sub-layer does, at the scheme's initial values, in block 4 of 12."""
    rule = scheme.resolve(SITE)
    if not rule.planar:
        return Block(streams=rule.streams if rule.streams < DIM else 0, opaque=True)
    parts = Parts(rule, SITE, NormSpec("unit", DIM, gains=False, eps=0.0)).double()
    p = parts()
    generator = torch.Generator().manual_seed(0)
    x, u = (torch.randn(DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    x = x / x.norm()

    def read(x: Tensor) -> Tensor:
        return read_at(rule, x, p, SITE)[0]

    def write(x: Tensor, u: Tensor) -> Tensor:
        return write_at(rule, x, u, p, SITE, carry=read_at(rule, x, p, SITE)[1])

    def length(a: float, b: float) -> float:
        return round(float(write(a * x, b * u).norm() / x.norm()), 6)

    with torch.no_grad():
        before, tangential = same(read(x), read(2 * x)), same(write(x, u), write(x, u + x))
        moved, share = not same(write(x, u), x), number(float(read(x).norm())) if before else ""
        if moved and tangential and length(1, 1) == 1 and length(2, 1) == 2:
            return Block(before=before, turn=True)
        after = length(1, 1) == length(2, 1) == length(1, 0.1)
        update = moved and same(write(x, u), write(x, 2 * u))
        v = u - tangential * (u @ x) / (x @ x) * x
        v = v * x.norm() / v.norm() if update else v
        solution = torch.linalg.lstsq(torch.stack((x, v), 1), write(x, u)[:, None]).solution
        a, b = (float(weight) for weight in solution[:, 0])
    weights = (number(a / b), "") if after else (number(a), number(b))
    if [*parts.parameters()]:
        weights = (weights[0], f"{weights[1] or '×1'} at first")
    return Block(1, False, before, update, tangential and moved, after, False, weights, share)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-9)


def number(value: float) -> str:
    """A weight in two figures; nothing for 1."""
    figures = f"{value if abs(value) > 1e-9 else 0:.2g}"
    return "" if figures == "1" else f"×{figures}"


def diagram(scheme: Scheme) -> str:
    """The block as an SVG image: the hidden state runs upwards on the left, the sub-layer stands on the right."""
    block, count = look(scheme), 4
    count = min(block.streams, count) or count
    lanes = [60 - 9 * (count - 1) + 18 * lane for lane in range(count)]
    left, right, top, bottom = lanes[-1], 170, 80, 200
    shapes = [line(lane, 230, lane, 12) + arrow(lane, 8) for lane in lanes]
    shapes += [line(left, bottom, right, bottom), line(right, bottom, right, top), line(right, top, left, top)]
    shapes += [box(right, 140, "sub-layer", 84), text(60, 248, "x")]
    shapes += [box(right, 178, "N", 28)] * block.before + [box(right, 102, "N", 28)] * block.update
    shapes += [box(right, 102, "⊥", 28)] * block.tangential + [box(60, 42, "N", 28)] * block.after
    if block.opaque:
        shapes += [box(60, top, "write", 70), box(60, bottom, "read", 70)]
    else:
        shapes += [circle(60, top, "↻" if block.turn else "+"), text(54, 120, block.weights[0], "end")]
        shapes += [text(78, 72, block.weights[1], "start")]
        shapes += [text(190, 183, block.share, "start")]
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 230 256" {STYLE}>{"".join(shapes)}</svg>'


def moves(name: str) -> str:
    """How block 1 moves a token, without words: a line from x to x' for each length of the update."""
    scheme = geonorm.parse(geonorm.parse(name).about.figure_of or name)
    paths = follow_write(scheme, 1, step=round(scheme.about.figure_at * getattr(scheme, "steps", 0)))
    radius = round(84 / max(1, *(max(point) for path in paths for point in path.points)))
    shapes = [f'<path d="M{8 + radius} 92A{radius} {radius} 0 0 0 8 {92 - radius}" stroke-dasharray="2 3"/>']
    for path in paths:
        points = [(round(8 + radius * along, 1), round(92 - radius * across, 1)) for along, across in path.points]
        shapes.append(f'<path d="M{"L".join(f"{x} {y}" for x, y in points)}"/>')
        shapes.append('<circle cx="{}" cy="{}" r="3" fill="#2b2b2b"/>'.format(*points[-1]))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100" {STYLE}>{"".join(shapes)}</svg>'


STYLE = 'font-family="system-ui, sans-serif" font-size="15" stroke-width="1.6" fill="none" stroke="#2b2b2b"'


def line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<path d="M{x0} {y0}L{x1} {y1}"/>'


def arrow(x: float, y: float) -> str:
    return f'<path d="M{x} {y}l-4 8h8z" fill="#2b2b2b"/>'


def text(x: float, y: float, content: str, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#2b2b2b" stroke="none">{content}</text>'


def box(x: float, y: float, content: str, width: float) -> str:
    shape = f'<rect x="{x - width / 2}" y="{y - 14}" width="{width}" height="28" rx="5" fill="#ffffff"/>'
    return shape + text(x, y + 5, content)


def circle(x: float, y: float, content: str) -> str:
    return f'<circle cx="{x}" cy="{y}" r="13" fill="#ffffff"/>' + text(x, y + 6, content)


PARENTS = {
    "post": "", "pre": "post", "deepnorm": "post", "keel": "deepnorm", "sqrt": "post", "ngpt": "post", "angpt": "ngpt",
    "geonorm": "post", "nag": "geonorm", "mix": "post", "residual_dual": "post", "siamese": "residual_dual",
    "peri": "sandwich", "sandwich": "pre", "muse": "peri", "olmo2": "post", "hybrid": "post", "beam": "peri",
    "lns": "pre", "gpas": "pre", "rezero": "pre", "layerscale": "rezero", "affine": "layerscale",
    "orthogonal": "pre", "norm_preserving": "pre", "hyper": "pre", "mhc": "hyper", "gated_streams": "hyper",
    "lambdas": "pre", "attnres": "pre", "lanes": "lambdas",
}  # fmt: skip
"""By scheme the one whose equation it changes, as we read their papers; combinators have none."""


def year(name: str) -> int:
    return int(re.findall(r"\b20\d\d\b", geonorm.schemes.find(name).about.source)[0])


def descend(parent: str) -> Iterator[str]:
    """Descendants, each below its parent, the oldest first."""
    for name in sorted((name for name in PARENTS if PARENTS[name] == parent), key=year):
        yield name
        yield from descend(name)


def tree() -> str:
    """The family tree: a scheme stands at its year, right of and below the one that it comes from."""
    shapes, x, y = [], {"": 0}, {"": 20}
    for name in descend(""):
        parent = PARENTS[name]
        x[name] = max(64 * (year(name) - 2017) + 30, x[parent] + 18)
        y[name] = 24 * len(x)
        if parent:
            shapes.append(f'<path d="M{x[parent]} {y[parent] + 6}V{y[name]}H{x[name] - 6}" stroke="#757575"/>')
        dot = f'<circle cx="{x[name]}" cy="{y[name]}" r="5" fill="{looks([name])[name].light}" stroke="none"/>'
        label = text(x[name] + 10, y[name] + 5, name, "start")
        shapes.append(f'<a href="schemes/{name}.html">{dot}{label}</a>')
    shapes += [text(64 * place + 30, 16, str(2017 + place)) for place in range(10)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 790 {24 * len(x) + 10}" {STYLE}>{"".join(shapes)}</svg>'
    )
