"""Reports: what a comparison found, from run directories alone. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

__all__ = ["build", "write_figures"]

AnyPath = str | PathLike[str]


def build(dirs: Sequence[AnyPath] | AnyPath, out: AnyPath, figures: AnyPath | None = None) -> Path:
    """Write one self-contained HTML page about the runs under `dirs` and return its path.

    `dirs` are run directories, directories that hold some, or comparisons (DIR/runs/*). With `figures`, the
    PNG and SVG figures go to that directory as well. Raises FileNotFoundError where there is no run at all.
    """
    from geonorm.report.page import page
    from geonorm.report.runs import load

    comparison = load(dirs)
    target = Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(comparison), encoding="utf-8")
    if figures is not None:
        write_figures(dirs, figures)
    return target


def write_figures(dirs: Sequence[AnyPath] | AnyPath, out_dir: AnyPath) -> list[Path]:
    """Write final_loss, loss_curves, geometry and learning_rates as PNG and SVG; returns what was written.

    A figure with nothing to show (no trace, one learning rate) is left out.
    """
    from geonorm.report.figures import draw
    from geonorm.report.runs import load

    return draw(load(dirs), Path(out_dir))
