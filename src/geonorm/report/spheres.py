"""The tokens of a simulation on a sphere that can be turned, a sphere for each scheme, with a slider through depth."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from html import escape
from struct import iter_unpack
from typing import Any

from .simulation import SavedSimulation, caption
from .simulation_charts import RING, circle, opacity, seen_from
from .vega import Axis, Chart, inline

SIZE, REACH, SCALE = 200, 1.1, 32767
"""Pixels of a picture, what it shows of an axis where the sphere has radius 1, and units of a coordinate in a frame."""


def spheres(trace: SavedSimulation, place: Mapping[str, int]) -> str:
    """The section as HTML; empty for a simulation without frames. The page's script turns the spheres and goes through
    their frames; without it they stand at the middle of depth."""
    frames = {name: trace.particles.get("frames", {}).get(name) for name in trace.names}
    shown = {name: found for name, found in frames.items() if found}
    if not shown:
        return ""
    longest = max(shown.values(), key=len)
    times = [frame["time"] + 1 for frame in longest]
    middle = (len(times) - 1) // 2
    run = caption({**trace.summary, **trace.particles.get("run", {}), "time": trace.summary["time"]})
    told = f"{run}. Drag a sphere to turn all; the axes are the same for all schemes; the far side is paler."
    figures = "".join(_figure(trace, name, found, place, middle) for name, found in shown.items())
    return (
        f'<div class="spheres" data-times="{escape(json.dumps(times))}" data-size="{SIZE}" data-reach="{REACH}">'
        f'<p class="caption">{escape(told)}</p>'
        '<label class="depth">depth-time <output></output>'
        f'<input type="range" min="0" max="{len(times) - 1}" step="any" value="{middle}" aria-label="depth"></label>'
        f'<div class="globes">{figures}</div></div>'
    )


def _figure(
    trace: SavedSimulation, name: str, frames: Sequence[Mapping[str, Any]], place: Mapping[str, int], middle: int
) -> str:
    axis = Axis(-REACH, REACH, shown=False)
    chart = Chart(f"{name} on the sphere", axis, axis, RING | trace.looks, width=SIZE, height=SIZE)
    chart.outline("ring", circle(), "ring")
    for token, point in enumerate(unpack(frames[min(middle, len(frames) - 1)]["points"])):
        right, up, near = seen_from(point)
        chart.mark(name, right, up, f"{name} · token {token}", "dot", o=opacity(near))
    data = [[frame["cos"], frame["points"]] for frame in frames]
    return (
        f'<figure data-s="{place[name]}" data-frames="{escape(json.dumps(data))}"><figcaption><strong>{escape(name)}'
        f"</strong><span></span></figcaption>{inline(chart, place)}</figure>"
    )


def unpack(text: str) -> list[tuple[float, float, float]]:
    """Points of a frame: base64 of little-endian int16, three of a point."""
    return [(a / SCALE, b / SCALE, c / SCALE) for a, b, c in iter_unpack("<3h", b64decode(text))]
