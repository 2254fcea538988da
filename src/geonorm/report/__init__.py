"""Reports of comparisons, ladders, simulations and probes, from their folders alone. Nothing here imports torch.

records -> Study (caption, findings, limits, tables, charts) -> page, text, LaTeX, CSV, PDF, figures
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .charts import Figure
    from .study import Study
    from .style import Look

__all__ = ["build", "draw", "summarize", "write_figures"]

AnyPath = str | PathLike[str]


def build(
    dirs: Sequence[AnyPath] | AnyPath, out: AnyPath, figures: AnyPath | None = None, *,
    format: str = "html", schemes: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write one self-contained HTML page about the runs, ladders, simulations and probes under `dirs`; return its path.

    `dirs` are run directories, directories that hold some, comparisons (DIR/runs/*), ladders, simulations and probes,
    together as you like: all runs are one comparison. With `figures`, the figures go to that directory as well.
    `format`: the tables as latex or csv, or the figures as pdf, in place of the page. `schemes`: these alone, in this
    order. Raises FileNotFoundError where there is no run at all, GeonormError for a scheme that no directory has, where
    files of a study are damaged, or where `out` does not end as the format does.

    >>> with geonorm.simulate(schemes="pre", tokens=3, dim=3, time=2.0, points=9, seeds=1).folder() as folder:
    ...     geonorm.report.build(folder, "page.html").name
    'page.html'
    """
    from ..errors import GeonormError
    from . import formats
    from .page import page

    target = Path(out)
    if target.suffix != formats.ENDINGS[format]:
        raise GeonormError(f"--out {target} does not end in {formats.ENDINGS[format]}")
    styles, studies = _read(dirs, schemes)
    content = page(studies, styles) if format == "html" else formats.WRITERS[format](studies)
    if figures is not None:  # first: where their folder cannot be made, nothing is written
        _save(studies, Path(figures))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


def write_figures(dirs: Sequence[AnyPath] | AnyPath, out_dir: AnyPath) -> list[Path]:
    """Write every figure as PNG, SVG and PDF; return what was written.

    Of a comparison: final_loss, loss_curves, geometry, learning_rates; of a ladder: speedup, loss,
    difference; of a simulation: cosine, collapse, speed, sphere; of a coordinate check: turn; of a probe: those of
    `report.probe_charts`. A figure
    with nothing to show (no trace, one learning rate) is left out. Each of several sources has a folder with its name,
    numbered where two have the same.

    >>> with geonorm.simulate(schemes="pre", tokens=3, dim=3, time=2.0, points=9, seeds=1).folder() as folder:
    ...     [file.name for file in geonorm.report.write_figures(folder, "figures")][:3]
    ['cosine.png', 'cosine.svg', 'cosine.pdf']
    """
    return _save(_read(dirs)[1], Path(out_dir))


def draw(directory: AnyPath) -> dict[str, Figure]:
    """The figures that `write_figures` writes of one directory, by name, for notebooks. Writes nothing.

    >>> with geonorm.simulate(schemes="pre", tokens=3, dim=3, time=2.0, points=9, seeds=1).folder() as folder:
    ...     list(geonorm.report.draw(folder))
    ['cosine', 'collapse', 'speed', 'sphere']
    """
    from .charts import Figure

    return {name: Figure(spec) for study in _read(directory)[1] for name, spec in study.figures().items()}


def summarize(directory: AnyPath, width: int = 100) -> list[str]:
    """The study in a directory as lines of text: tables, findings and limits.

    >>> with geonorm.simulate(schemes="pre", tokens=3, dim=3, time=2.0, points=9, seeds=1).folder() as folder:
    ...     geonorm.report.summarize(folder)[2].split()[0]
    'pre'
    """
    (study,) = _read(directory)[1]
    return study.text_lines(width)


def _read(dirs: Sequence[AnyPath] | AnyPath, schemes: Sequence[str] = ()) -> tuple[Mapping[str, Look], Sequence[Study]]:
    """All runs as one comparison, then each ladder, simulation and probe; with the look of each name, so that a scheme
    has one colour everywhere."""
    from ..errors import GeonormError, unknown
    from ..lab.load import study_kind
    from .comparison import load_comparison
    from .ladder import SavedLadder
    from .probe import SavedProbe
    from .simulation import SavedSimulation
    from .style import looks
    from .transfer import SavedTransfer

    paths = [Path(dirs)] if isinstance(dirs, (str, PathLike)) else [Path(d) for d in dirs]
    kinds = {path: study_kind(path) for path in paths}
    readers = {
        "ladder": SavedLadder.load, "simulation": SavedSimulation.load, "probe": SavedProbe.load,
        "transfer": SavedTransfer.load,
    }  # fmt: skip
    trained = [path for path in paths if kinds[path] not in readers]
    studies: list[Study] = [load_comparison(trained)] if trained else []
    studies += [load(path) for kind, load in readers.items() for path in paths if kinds[path] == kind]
    names = dict.fromkeys(name for study in studies for pair in study.keys.items() for name in pair)
    for scheme in schemes:
        if scheme not in names:
            raise GeonormError(unknown("scheme", scheme, names))
    chosen = [one for study in studies if (one := replace(study, chosen=schemes)).names]
    styles = looks(list(dict.fromkeys(key for study in chosen for key in study.keys.values())))
    return styles, [replace(study, styles=styles) for study in chosen]


def _save(studies: Sequence[Study], out_dir: Path) -> list[Path]:
    """Write the figures of each study; several get a folder each, numbered where names are the same."""
    from .charts import save_figures

    names = [study.source for study in studies]
    unique = len(set(names)) == len(names)
    written = []
    for number, study in enumerate(studies, 1):
        folder = study.source if unique else f"{number}-{study.source}"
        written += save_figures(study.figures(), out_dir / folder if len(studies) > 1 else out_dir)
    return written
