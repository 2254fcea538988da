"""Top-1 accuracy by class, where runs tell classes of images apart."""

from __future__ import annotations

from statistics import fmean

from .page import Section, html_table
from .runs import SavedComparison

NOTE = (
    "<p>Share of the held-out images of a class that are given it, mean over the runs that the table above counts; "
    "all held-out images, after the last step.</p>"
)


def class_sections(comparison: SavedComparison) -> list[Section]:
    """A table of one row per class and one column per scheme; nothing where no run measured that."""
    found: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, int] = {}
    for scheme in comparison.names:
        for run in comparison.drawn(scheme):
            for row in run.summary.get("val_classes") or ():
                found.setdefault(row["class"], {}).setdefault(scheme, []).append(row["accuracy"])
                counts[row["class"]] = row["images"]
    if not found:
        return []
    cells = [
        [name, str(counts[name]), *(f"{fmean(by[s]):.1%}" if s in by else "–" for s in comparison.names)]
        for name, by in found.items()
    ]
    return [Section("Accuracy by class", [html_table(["class", "images", *comparison.names], cells), NOTE])]
