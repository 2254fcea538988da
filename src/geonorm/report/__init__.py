"""Reports: what comparisons, ladders, simulations and probes found, from their directories alone. Nothing here imports
torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .page import Part
    from .source import SavedStudy
    from .style import Look
    from .vega import Figure

    Teller = Callable[[Any, Mapping[str, int]], Part]
    """What is said of a study; the numbers are the places of its series in the legend."""

__all__ = ["build", "draw", "write_figures"]

AnyPath = str | PathLike[str]


def build(
    dirs: Sequence[AnyPath] | AnyPath, out: AnyPath, figures: AnyPath | None = None, force: bool = False, *,
    format: str = "html", schemes: Sequence[str] = (), sort: str | None = None,
) -> Path:  # fmt: skip
    """Write one self-contained HTML page about the runs, ladders, simulations and probes under `dirs`; return its path.

    `dirs` are run directories, directories that hold some, comparisons (DIR/runs/*), ladders, simulations and probes,
    together as you like: all runs are one comparison. With `figures`, the figures go to that directory as well.
    `format`: the tables as latex or csv, or the figures as pdf, in place of the page. `schemes`: which ones, in which
    order; `sort="loss"`: the best first. Raises FileNotFoundError where there is no run at all, GeonormError for a
    scheme that no directory has, where files of a study are damaged, or where `out` holds something else than such a
    report; `force` overwrites it.
    """
    from . import formats
    from .page import page

    target = Path(out)
    _check_target(target, None if figures is None else Path(figures), force, format)
    styles, parts = _read(dirs, schemes, sort)
    title = parts[0].title if len(parts) == 1 else ", ".join(dict.fromkeys(part.title for part in parts))
    content = page(title, parts, styles) if format == "html" else formats.WRITERS[format](parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    if figures is not None:
        _save(parts, Path(figures))
    return target


def write_figures(dirs: Sequence[AnyPath] | AnyPath, out_dir: AnyPath) -> list[Path]:
    """Write final_loss, loss_curves, geometry, law, learning_rates and uniform as PNG, SVG and PDF; returns what was
    written.

    Of a ladder: speedup, loss, difference; of a simulation: cosine, collapse, speed, sphere; of a
    probe: those of `report.probe_charts`. A figure with
    nothing to show (no trace, one learning rate) is left out. Of several sources each has a folder of its own, by
    their names, numbered where two have the same.
    """
    return _save(_read(dirs)[1], Path(out_dir))


def draw(directory: AnyPath) -> dict[str, Figure]:
    """The figures that `write_figures` writes of one directory, by name, for notebooks. Writes nothing."""
    from .vega import Figure

    return {name: Figure(spec) for part in _read(directory)[1] for name, spec in part.figures.items()}


MARK = '<!doctype html><html lang="en"><head><meta charset="utf-8">'
"""How our pages begin."""


def _check_target(target: Path, figures: Path | None, force: bool, format: str) -> None:
    """GeonormError if the report would take the place of something else, or figures cannot be put where they shall."""
    from ..errors import GeonormError
    from .formats import MARKS

    if target.is_dir():
        raise GeonormError(f"{target} is a folder: give --out a file, such as {target / 'report.html'}")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise GeonormError(f"{figures} is a file: give --figures a folder")
    if not target.exists() or force:
        return
    mark = MARKS.get(format, MARK).encode()
    with open(target, "rb") as file:
        if file.read(len(mark)) != mark:
            what = "page" if format == "html" else f"{format} report"
            raise GeonormError(f"{target} is no {what} of geonorm: choose another --out, or overwrite it with --force")


def _read(
    dirs: Sequence[AnyPath] | AnyPath, schemes: Sequence[str] = (), sort: str | None = None
) -> tuple[dict[str, Look], list[Part]]:
    """What is said of all runs as one comparison, then of each simulation and each probe; of `schemes` alone, if any
    are named. Before it the look of each name, so that a scheme has one colour everywhere."""
    from ..errors import GeonormError, unknown
    from . import comparison, ladder, probe, runs, simulation, studies
    from .style import looks

    paths = [Path(dirs)] if isinstance(dirs, (str, PathLike)) else [Path(d) for d in dirs]
    kinds = {path: runs.study_kind(path) for path in paths}
    readers: dict[str, tuple[Callable[[Path], SavedStudy], Teller]] = {
        "ladder": (ladder.load, studies.report_ladder),
        "simulation": (simulation.load, studies.report_simulation),
        "probe": (probe.load, studies.report_probe),
    }
    trained = [path for path in paths if kinds[path] not in readers]
    found: list[tuple[SavedStudy, Teller]] = [(runs.load(trained), comparison.report_comparison)] if trained else []
    for kind, (load, tell) in readers.items():
        found += [(load(path), tell) for path in paths if kinds[path] == kind]
    names = [name for source, _ in found for pair in source.keys.items() for name in pair]
    for scheme in schemes:
        if scheme not in names:
            raise GeonormError(unknown("scheme", scheme, dict.fromkeys(names)))
    chosen = [(only, tell) for source, tell in found if (only := source.only(schemes, sort)).keys]
    styles = looks(list(dict.fromkeys(key for source, _ in chosen for key in source.keys.values())))
    place = {name: index for index, name in enumerate(styles)}
    return styles, [tell(replace(source, styles=styles), place) for source, tell in chosen]


def _save(parts: Sequence[Part], out_dir: Path) -> list[Path]:
    """Write the figures of each part; several get a folder each, numbered where names are the same: run, run-2."""
    from .vega import save_figures

    names = [part.source for part in parts]
    folders: list[str] = []
    for name in names:
        free = (f"{name}-{number}" for number in count(2))
        folders.append(next(n for n in chain([name], free) if n not in folders and (n == name or n not in names)))
    places = [out_dir / folder if len(parts) > 1 else out_dir for folder in folders]
    return [file for part, place in zip(parts, places, strict=True) for file in save_figures(part.figures, place)]
