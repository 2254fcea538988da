"""Reports: what a comparison found, from run directories alone. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from os import PathLike
from pathlib import Path

__all__ = ["build", "write_figures"]

AnyPath = str | PathLike[str]


def build(dirs: Sequence[AnyPath] | AnyPath, out: AnyPath, figures: AnyPath | None = None) -> Path:
    """Write one self-contained HTML page about the runs under `dirs` and return its path.

    `dirs` are run directories, directories that hold some, comparisons (DIR/runs/*), or simulations (then all of
    them). With `figures`, the PNG and SVG figures go to that directory as well. Raises FileNotFoundError where there
    is no run at all, GeonormError where simulations and runs are mixed.
    """
    from geonorm.report.page import page
    from geonorm.report.runs import load

    if simulations := _simulations(dirs):
        return _build_simulations(simulations, Path(out), figures)
    comparison = load(dirs)
    target = Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(comparison), encoding="utf-8")
    if figures is not None:
        write_figures(dirs, figures)
    return target


def write_figures(dirs: Sequence[AnyPath] | AnyPath, out_dir: AnyPath) -> list[Path]:
    """Write final_loss, loss_curves, geometry, law, learning_rates and uniform as PNG and SVG; returns what was
    written.

    Of a simulation: cosine, collapse, speed and sphere. A figure with nothing to show (no trace, one learning rate) is
    left out. Several simulations write to a folder each, by their names, numbered where two have
    the same.
    """
    from geonorm.report.figures import draw
    from geonorm.report.runs import load

    if simulations := _simulations(dirs):
        several = len(simulations) > 1
        names = _distinct([path.resolve().name for path in simulations])
        folders = [Path(out_dir) / name if several else Path(out_dir) for name in names]
        return [file for path, folder in zip(simulations, folders, strict=True) for file in _draw(path, folder)]
    return draw(load(dirs), Path(out_dir))


def _distinct(names: Sequence[str]) -> list[str]:
    """The names in order; one that is taken already gets the first free number: run, run-2, run-3."""
    taken: list[str] = []
    for name in names:
        free = (f"{name}-{number}" for number in count(2))
        taken.append(next(new for new in chain([name], free) if new not in taken and (new == name or new not in names)))
    return taken


def _simulations(dirs: Sequence[AnyPath] | AnyPath) -> list[Path]:
    """The directories, if they are simulations; none if they are not."""
    from geonorm.errors import GeonormError
    from geonorm.report.simulation import is_simulation

    paths = [Path(dirs)] if isinstance(dirs, (str, PathLike)) else [Path(d) for d in dirs]
    found = [path for path in paths if is_simulation(path)]
    if found and len(found) < len(paths):
        raise GeonormError("one report is about runs or about simulations, not both: give them apart")
    return found


def _draw(path: Path, folder: Path) -> list[Path]:
    from geonorm.report.figures import save
    from geonorm.report.simulation import caption, load
    from geonorm.report.trajectories import FIGURES

    trace = load(path)
    return save(trace, FIGURES, caption(trace.summary), folder)


def _build_simulations(paths: list[Path], target: Path, figures: AnyPath | None) -> Path:
    from tempfile import TemporaryDirectory

    from geonorm.report.simulation import load, page

    drawings = []
    for path in paths:
        with TemporaryDirectory() as scratch:
            written = [file for file in _draw(path, Path(scratch)) if file.suffix == ".svg"]
            drawings.append({file.stem: file.read_bytes() for file in written})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page([load(path) for path in paths], drawings), encoding="utf-8")
    if figures is not None:
        write_figures(paths, figures)
    return target
