"""Settings of `geonorm report`."""

from dataclasses import dataclass, field
from typing import Literal

from ..settings import Positive, Settings


@dataclass(frozen=True)
class ReportConfig(Settings):
    """A self-contained page from run or comparison directories, or from simulations."""

    words = ("dirs",)
    examples = (
        "geonorm report runs/mine runs/theory --out page.html",
        "geonorm report runs/mine --format pdf --panels noise --labels pre=Pre-Norm --size 60 30",
    )

    dirs: list[str]
    """Directories of comparisons, ladders, runs, simulations and probes, together as you like."""
    out: str | None = None
    """The file to write; report.html, report.tex, report.csv or report.pdf where none is named."""
    format: Literal["html", "latex", "csv", "pdf"] = "html"
    """The page; its tables for LaTeX (booktabs); its numbers as CSV; or its figures as one PDF."""
    schemes: list[str] = field(default_factory=list)
    """These schemes (of probes: models) alone, in this order. Their statistics stay those of the whole."""
    figures: str | None = None
    """Directory for PNG, SVG and PDF figures."""
    panels: list[str] = field(default_factory=list)
    """These figures or single panels alone, in figures and PDF: learning_rates, radius."""
    labels: list[str] = field(default_factory=list)
    """NAME=LABEL: names to write in figures and LaTeX; figures then have no title and text, as papers want them."""
    size: tuple[Positive, Positive] | None = None
    """Width and height of each panel inside its axes, in mm; figures then have no title and text."""
