"""Reports: what a comparison found, from run directories alone. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from os import PathLike
from pathlib import Path

__all__ = ["build", "write_figures"]

AnyPath = str | PathLike[str]


def build(dirs: Sequence[AnyPath] | AnyPath, out: AnyPath, figures: AnyPath | None = None, force: bool = False) -> Path:
    """Write one self-contained HTML page about the runs under `dirs` and return its path.

    `dirs` are run directories, directories that hold some, comparisons (DIR/runs/*), or simulations or probes (then
    all of them). With `figures`, the PNG and SVG figures go to that directory as well. Raises FileNotFoundError where
    there is no run at all, GeonormError where these kinds are mixed, where files of a simulation or probe are damaged,
    or where `out` holds something else than such a page; `force` overwrites it.
    """
    from .page import page
    from .runs import load

    target = Path(out)
    _check_target(target, None if figures is None else Path(figures), force)
    if study := _study(dirs):
        return _build_study(*study, target, figures)
    comparison = load(dirs)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(comparison), encoding="utf-8")
    if figures is not None:
        write_figures(dirs, figures)
    return target


def write_figures(dirs: Sequence[AnyPath] | AnyPath, out_dir: AnyPath) -> list[Path]:
    """Write final_loss, loss_curves, geometry, law, learning_rates and uniform as PNG and SVG; returns what was
    written.

    Of a simulation: cosine, collapse, speed and sphere; of a probe: those of `report.geometry`. A figure with nothing
    to show (no trace, one learning rate) is left out. Several simulations or probes write to a folder each, by their
    names, numbered where two have the same.
    """
    from .figures import draw
    from .runs import load

    if study := _study(dirs):
        return [file for written in _figures(*study, Path(out_dir)) for file in written]
    return draw(load(dirs), Path(out_dir))


MARK = '<!doctype html><html lang="en"><head><meta charset="utf-8">'
"""How our pages begin, those of older versions too."""


def _check_target(target: Path, figures: Path | None, force: bool) -> None:
    """GeonormError if the page would take the place of something else, or figures cannot be put where they shall."""
    from ..errors import GeonormError

    if target.is_dir():
        raise GeonormError(f"{target} is a folder: give --out a file, such as {target / 'report.html'}")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise GeonormError(f"{figures} is a file: give --figures a folder")
    if not target.exists() or force:
        return
    with open(target, "rb") as file:
        if file.read(len(MARK)) != MARK.encode():
            raise GeonormError(f"{target} is no page of geonorm: choose another --out, or overwrite it with --force")


def _distinct(names: Sequence[str]) -> list[str]:
    """The names in order; one that is taken already gets the first free number: run, run-2, run-3."""
    taken: list[str] = []
    for name in names:
        free = (f"{name}-{number}" for number in count(2))
        taken.append(next(new for new in chain([name], free) if new not in taken and (new == name or new not in names)))
    return taken


def _study(dirs: Sequence[AnyPath] | AnyPath) -> tuple[str, list[Path]] | None:
    """(simulation or probe, the directories), if they are such; None if they are runs."""
    from ..errors import GeonormError
    from .runs import kind

    paths = [Path(dirs)] if isinstance(dirs, (str, PathLike)) else [Path(d) for d in dirs]
    kinds = {kind(path).replace("comparison", "run") for path in paths}
    if len(kinds) > 1:
        raise GeonormError("one report is about runs, about simulations or about probes: give them apart")
    return None if kinds <= {"run"} else (kinds.pop(), paths)


def _figures(kind: str, paths: list[Path], out_dir: Path) -> list[list[Path]]:
    """Figures of each directory; several get a folder each."""
    names = _distinct([path.resolve().name for path in paths])
    folders = [out_dir / name if len(paths) > 1 else out_dir for name in names]
    return [_draw(kind, path, folder) for path, folder in zip(paths, folders, strict=True)]


def _draw(kind: str, path: Path, folder: Path) -> list[Path]:
    from . import geometry, simulation, trajectories
    from .figures import save

    if kind == "probe":
        found = geometry.load(path)
        return save(found, geometry.FIGURES, geometry.caption(found), folder, geometry.NOTES)
    trace = simulation.load(path)
    return save(trace, trajectories.FIGURES, simulation.caption(trace.summary), folder)


def _build_study(kind: str, paths: list[Path], target: Path, figures: AnyPath | None) -> Path:
    from tempfile import TemporaryDirectory

    from . import geometry, simulation

    drawings = []
    with TemporaryDirectory() as scratch:
        for written in _figures(kind, paths, Path(scratch if figures is None else figures)):
            drawings.append({file.stem: file.read_bytes() for file in written if file.suffix == ".svg"})
    if kind == "probe":
        text = geometry.page([geometry.load(path) for path in paths], drawings)
    else:
        text = simulation.page([simulation.load(path) for path in paths], drawings)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target
