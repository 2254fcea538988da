"""Reports of comparisons, ladders, simulations and probes, from their folders alone. Nothing here imports torch.

records -> Study (caption, findings, limits, tables, charts) -> page, text, LaTeX, CSV, PDF, figures
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .render import Figure
    from .study import Study
    from .style import Look

__all__ = ["build", "draw", "summarize"]

AnyPath = str | PathLike[str]


def build(
    dirs: Sequence[AnyPath] | AnyPath, out: AnyPath, figures: AnyPath | None = None, *,
    format: str = "html", schemes: Sequence[str] = (), panels: Sequence[str] = (),
    labels: Mapping[str, str] | None = None, size: Sequence[float] = (),
) -> Path:  # fmt: skip
    """Write one self-contained HTML page about the runs, ladders, simulations and probes under `dirs`; return its path.

    `dirs` are run directories, directories that hold some, comparisons (DIR/runs/*), ladders, simulations and probes,
    together as you like: all runs are one comparison. With `figures`, the figures go to that directory as well.
    `format`: the tables as latex or csv, or the figures as pdf, in place of the page. `schemes`: these alone, in this
    order. `panels`: these figures or single panels alone, in figures and PDF. For a paper, figures without title and
    text: `labels`, by series the name to write there and in LaTeX; `size`, width and height inside the axes of each
    panel, in mm. Raises FileNotFoundError where there is no run at all, GeonormError for a scheme
    or panel that no directory has, where files of a study are damaged, or where `out` does not end as the format does.

    >>> with geonorm.simulate(schemes="pre", tokens=3, dim=3, time=2.0, points=9, seeds=1).folder() as folder:
    ...     geonorm.report.build(folder, "page.html").name
    'page.html'
    """
    from ..errors import GeonormError
    from ..lab.runs.folder import write_atomic
    from . import formats, page

    target = Path(out)
    if target.suffix != formats.ENDINGS[format]:
        raise GeonormError(f"--out {target} does not end in {formats.ENDINGS[format]}")
    styles, studies = _read(dirs, schemes, only=panels, labels=labels or {}, size=size)
    content = page.page(studies, styles) if format == "html" else formats.WRITERS[format](studies)
    if figures is not None:  # first: where their folder cannot be made, nothing is written
        _save(studies, Path(figures))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, content)
    return target


def draw(
    directory: AnyPath, panels: Sequence[str] = (), labels: Mapping[str, str] | None = None, size: Sequence[float] = ()
) -> dict[str, Figure]:
    """The figures that `build` writes of one directory, by name, for notebooks; or those of a paper, see
    `build`. Writes nothing.

    Of a comparison: final_loss, loss_curves, geometry, learning_rates; of a ladder: speedup, loss, difference; of a
    simulation: cosine, collapse, turn, speed, sphere; of a coordinate check: turn; of a register: register; of a
    probe: those of `report.probe`. A figure with nothing to show (no trace, one learning rate) is left out.

    >>> with geonorm.simulate(schemes="pre", tokens=3, dim=3, time=2.0, points=9, seeds=1).folder() as folder:
    ...     list(geonorm.report.draw(folder))
    ['cosine', 'collapse', 'turn', 'speed', 'sphere']
    """
    from .render import Figure

    _, studies = _read(directory, only=panels, labels=labels or {}, size=size)
    return {name: Figure(spec) for study in studies for name, spec in study.figures().items()}


def summarize(directory: AnyPath, width: int = 100) -> list[str]:
    """The study in a directory as lines of text: tables, findings and limits.

    >>> with geonorm.simulate(schemes="pre", tokens=3, dim=3, time=2.0, points=9, seeds=1).folder() as folder:
    ...     geonorm.report.summarize(folder)[2].split()[0]
    'pre'
    """
    (study,) = _read(directory)[1]
    return study.text_lines(width)


def _read(
    dirs: Sequence[AnyPath] | AnyPath, schemes: Sequence[str] = (), only: Sequence[str] = (), **paper: Any
) -> tuple[Mapping[str, Look], Sequence[Study]]:
    """All runs as one comparison, then each ladder, simulation and probe; with the look of each name, so that a scheme
    has one colour everywhere."""
    from ..errors import GeonormError, unknown
    from ..lab.load import study_kind
    from . import comparison, ladder, probe, register, simulation, transfer
    from .style import looks

    paths = [Path(dirs)] if isinstance(dirs, (str, PathLike)) else [Path(d) for d in dirs]
    kinds = {path: study_kind(path) for path in paths}
    readers = {
        "ladder": ladder.SavedLadder.load, "simulation": simulation.SavedSimulation.load,
        "probe": probe.SavedProbe.load, "transfer": transfer.SavedTransfer.load,
        "register": register.SavedRegister.load,
    }  # fmt: skip
    trained = [path for path in paths if kinds[path] not in readers]
    studies: list[Study] = [comparison.load_comparison(trained)] if trained else []
    studies += [load(path) for kind, load in readers.items() for path in paths if kinds[path] == kind]
    names = dict.fromkeys(name for study in studies for pair in study.keys.items() for name in pair)
    for scheme in (*schemes, *paper.get("labels", ())):
        if scheme not in names:
            raise GeonormError(unknown("scheme", scheme, names))
    chosen = [one for study in studies if (one := replace(study, chosen=schemes)).names]
    schemes_of = {key: scheme for study in chosen for key, scheme in study.schemes.items()}
    styles = looks(list(schemes_of), schemes_of)
    studies = [replace(study, styles=styles, only=only, **paper) for study in chosen]
    drawn = dict.fromkeys(name for study in studies for name in study.panels()) if only else {}
    for name in only:
        if name not in drawn:
            raise GeonormError(unknown("figure", name, drawn))
    return styles, studies


def _save(studies: Sequence[Study], out_dir: Path) -> None:
    """Write the figures of each study; several get a numbered folder each."""
    from .render import save_figures

    for number, study in enumerate(studies, 1):
        save_figures(study.figures(), out_dir / f"{number}-{study.source}" if len(studies) > 1 else out_dir)
