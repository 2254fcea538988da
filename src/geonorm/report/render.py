"""Figures as pictures: vl-convert draws what charts.py defines, with no network and no browser."""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ..errors import GeonormError, unknown
from .charts import Spec
from .style import dark_rules


@dataclass(frozen=True, repr=False)
class Figure:
    """A figure that notebooks show. `spec` is its definition in Vega-Lite."""

    spec: Spec

    def _repr_svg_(self) -> str:
        return svg(self.spec)

    def save(self, path: str | Path) -> Path:
        """Writes it as the ending of the path says: .png, .svg or .pdf."""
        target = Path(path)
        kind = target.suffix.removeprefix(".")
        if kind not in RENDER:
            raise GeonormError(unknown("ending", kind or target.name, RENDER))
        target.write_bytes(RENDER[kind](svg(self.spec)))
        return target


DARK = f"@media (prefers-color-scheme:dark){{{dark_rules()}}}"
RENDER: dict[str, Callable[[str], bytes]] = {
    "png": lambda drawn: bytes(import_module("vl_convert").svg_to_png(drawn, scale=2)),
    "svg": lambda drawn: drawn.replace(">", f"><style>{DARK}</style>", 1).encode(),
    "pdf": lambda drawn: bytes(import_module("vl_convert").svg_to_pdf(drawn)),
}
"""Files of a figure from its SVG, by their ending."""


def save_figures(figures: Mapping[str, Spec], folder: Path) -> None:
    """Lay each figure out once, and write it as PNG, SVG and PDF."""
    from ..lab.runs.folder import write_atomic

    folder.mkdir(parents=True, exist_ok=True)
    for name, spec in figures.items():
        drawn = svg(spec)
        for kind, render in RENDER.items():
            write_atomic(folder / f"{name}.{kind}", render(drawn))


def svg(spec: Spec) -> str:
    """The figure as SVG, the same text every time, and with ids that no other figure of a page has."""
    import vl_convert

    text = str(vl_convert.vegalite_to_svg(spec))
    clips = {old: f"clip{new}" for new, old in enumerate(dict.fromkeys(re.findall(r'id="(clip\d+)"', text)))}
    # Vega counts on from the last figure
    text = re.sub(r"\bclip\d+\b", lambda match: clips.get(match[0], match[0]), text)
    return re.sub(r"\bclip(\d+)\b", rf"clip{zlib.crc32(text.encode()):x}-\1", text) if clips else text
