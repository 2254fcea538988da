"""Reports: what comparisons, simulations and probes found, from their directories alone. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .page import Part
    from .probe import Geometry
    from .runs import Comparison
    from .simulation import SavedSimulation
    from .style import Look
    from .vega import Figure, Spec

    Source = Comparison | SavedSimulation | Geometry

__all__ = ["build", "draw", "write_figures"]

AnyPath = str | PathLike[str]


def build(
    dirs: Sequence[AnyPath] | AnyPath, out: AnyPath, figures: AnyPath | None = None, force: bool = False, *,
    format: str = "html", schemes: Sequence[str] = (), sort: str | None = None,
) -> Path:  # fmt: skip
    """Write one self-contained HTML page about the runs, simulations and probes under `dirs` and return its path.

    `dirs` are run directories, directories that hold some, comparisons (DIR/runs/*), simulations and probes, together
    as you like: all runs are one comparison. With `figures`, the figures go to that directory as well. `format`: the
    tables as latex or csv, or the figures as pdf, in place of the page. `schemes`: which ones, in which order;
    `sort="loss"`: the best first. Raises FileNotFoundError where there is no run at all, GeonormError for a scheme
    that no directory has, where files of a simulation or probe are damaged, or where `out` holds something else than
    such a report; `force` overwrites it.
    """
    from . import formats
    from .page import page, shared_looks

    target = Path(out)
    _check_target(target, None if figures is None else Path(figures), force, format)
    sources = _open(dirs, schemes, sort)
    styles = shared_looks(source.keys for source in sources)
    parts = [_part(source, styles) for source in sources]
    title = parts[0].title if len(parts) == 1 else ", ".join(dict.fromkeys(part.title for part in parts))
    if format == "html":
        content: str | bytes = page(title, parts, styles)
    else:
        content = formats.WRITERS[format](parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    if figures is not None:
        _save([part.figures for part in parts], sources, Path(figures))
    return target


def write_figures(dirs: Sequence[AnyPath] | AnyPath, out_dir: AnyPath) -> list[Path]:
    """Write final_loss, loss_curves, geometry, law, learning_rates and uniform as PNG, SVG and PDF; returns what was
    written.

    Of a simulation: cosine, collapse, speed and sphere; of a probe: those of `report.probe_charts`. A figure with
    nothing to show (no trace, one learning rate) is left out. Of several sources each has a folder of its own, by
    their names, numbered where two have the same.
    """
    sources = _open_styled(dirs)
    return _save([_figures(source) for source in sources], sources, Path(out_dir))


def draw(directory: AnyPath) -> dict[str, Figure]:
    """The figures that `write_figures` writes of one directory, by name, for notebooks. Writes nothing."""
    from .vega import Figure

    return {name: Figure(spec) for source in _open_styled(directory) for name, spec in _figures(source).items()}


MARK = '<!doctype html><html lang="en"><head><meta charset="utf-8">'
"""How our pages begin, those of older versions too."""


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


def _open(dirs: Sequence[AnyPath] | AnyPath, schemes: Sequence[str] = (), sort: str | None = None) -> list[Source]:
    """All runs as one comparison, then each simulation and each probe; of `schemes` alone, if any are named."""
    from ..errors import GeonormError, unknown
    from . import probe, runs, simulation

    paths = [Path(dirs)] if isinstance(dirs, (str, PathLike)) else [Path(d) for d in dirs]
    kinds = {path: runs.kind(path) for path in paths}
    simulated = [path for path in paths if kinds[path] == "simulation"]
    probed = [path for path in paths if kinds[path] == "probe"]
    trained = [path for path in paths if path not in simulated and path not in probed]
    found: list[Source] = [runs.load(trained)] if trained else []
    found += [simulation.load(path) for path in simulated]
    found += [probe.load(path) for path in probed]
    names = [name for source in found for pair in source.keys.items() for name in pair]
    for scheme in schemes:
        if scheme not in names:
            raise GeonormError(unknown("scheme", scheme, dict.fromkeys(names)))
    chosen = [source.only(schemes, sort) if isinstance(source, runs.Comparison) else source.of(schemes)
              for source in found] if schemes or sort else found  # fmt: skip
    return [source for source in chosen if source.keys]


def _open_styled(dirs: Sequence[AnyPath] | AnyPath) -> list[Source]:
    """What the directories hold, one look for each name in all of them."""
    from .page import shared_looks

    sources = _open(dirs)
    styles = shared_looks(source.keys for source in sources)
    return [_styled(source, styles) for source in sources]


def _styled(source: Source, styles: Mapping[str, Look]) -> Source:
    from dataclasses import replace

    return replace(source, styles=styles)


def _part(source: Source, styles: Mapping[str, Look]) -> Part:
    from . import comparison, studies
    from .runs import Comparison
    from .simulation import SavedSimulation

    source = _styled(source, styles)
    place = {name: index for index, name in enumerate(styles)}
    if isinstance(source, Comparison):
        return comparison.part(source, place)
    return studies.simulation(source, place) if isinstance(source, SavedSimulation) else studies.probe(source, place)


def _figures(source: Source) -> dict[str, Spec]:
    from . import comparison_charts, probe_charts, simulation_charts
    from .runs import Comparison
    from .simulation import SavedSimulation

    if isinstance(source, Comparison):
        return comparison_charts.figures_of(source)
    return (
        simulation_charts.figures_of(source) if isinstance(source, SavedSimulation) else probe_charts.figures_of(source)
    )


def _save(figures: Sequence[Mapping[str, Spec]], sources: Sequence[Source], out_dir: Path) -> list[Path]:
    """Write the figures of each source; several get a folder each."""
    from .runs import Comparison
    from .vega import save_figures

    names = _distinct([s.source if isinstance(s, Comparison) else s.path.resolve().name for s in sources])
    folders = [out_dir / name if len(sources) > 1 else out_dir for name in names]
    return [file for drawn, folder in zip(figures, folders, strict=True) for file in save_figures(drawn, folder)]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names in order; one that is taken already gets the first free number: run, run-2, run-3."""
    taken: list[str] = []
    for name in names:
        free = (f"{name}-{number}" for number in count(2))
        taken.append(next(new for new in chain([name], free) if new not in taken and (new == name or new not in names)))
    return taken
