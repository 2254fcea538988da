"""`geonorm schemes --out`: how each scheme moves a token, as a picture."""

from __future__ import annotations

from pathlib import Path

from ..dynamics.paths import ANGLE, follow_write
from ..lab.runs.folder import check_writable, slug
from ..report.charts import Figure, Spec
from ..report.paths import draw_paths
from ..schemes import names, parse

BLOCKS = (1, 4)


def draw_schemes(name: str | None, folder: Path) -> list[Path]:
    """Writes a picture of the scheme, or of each, into the folder: the paths of a token in blocks 1 and 4. Returns the
    files. Raises ConfigError for a scheme that there is not, CheckpointError if nothing can be written."""
    drawn = {slug(each): draw(each) for each in ([name] if name else names())}
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [Figure(spec).save(folder / f"{stem}.svg") for stem, spec in drawn.items()]


def draw(name: str) -> Spec:
    """The picture of a scheme: one whose step is 0 at first is drawn with another initial value or later in training,
    and says so."""
    scheme = parse(name)
    if scheme.about.drawn_as and scheme == type(scheme)():
        name, scheme = scheme.about.drawn_as, parse(scheme.about.drawn_as)
    step = round(scheme.about.moment * getattr(scheme, "steps", 0))
    blocks = {t: follow_write(scheme, t, made=step) for t in BLOCKS}
    return draw_paths(f"{name}, step {step:,}" if step else name, scheme.about.equation, blocks, ANGLE)
