"""`geonorm schemes --out`: how each scheme moves a token, as a picture."""

from __future__ import annotations

from pathlib import Path

from ..dynamics.paths import ANGLE, follow_write
from ..lab.compare.compare import slug
from ..lab.studies.simulate import check_writable
from ..report.path_chart import draw_paths
from ..report.vega import Figure
from ..schemes import names, parse

BLOCKS = (1, 4)


def draw_schemes(name: str | None, folder: Path) -> list[Path]:
    """Writes a picture of the scheme, or of each, into the folder: the paths of a token in blocks 1 and 4. Returns the
    files. Raises ConfigError for a scheme that there is not, CheckpointError if nothing can be written."""
    drawn = {}
    for each in [name] if name else names():
        scheme = parse(each)
        blocks = {t: follow_write(scheme, t) for t in BLOCKS}
        drawn[slug(each)] = draw_paths(each, scheme.about.equation, blocks, ANGLE)
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [Figure(spec).save(folder / f"{stem}.svg") for stem, spec in drawn.items()]
