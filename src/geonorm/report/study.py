"""The base of all kinds of study: a folder becomes records, and these become a caption, findings, limits, tables,
figures and the sections of a page."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import wrap
from typing import Any, ClassVar, Self

from ..errors import GeonormError, cause
from ..parsing import from_json
from .charts import Chart, Spec, figure
from .style import Look, looks
from .tables import WIDTH, Table, align, fit_width

Record = dict[str, Any]
PIXELS_PER_MM = 96 / 25.4


@dataclass
class Section:
    """A titled part of the page: HTML or charts, in a class of the style sheet."""

    title: str
    content: list[str | list[Chart]]
    css: str = ""


@dataclass(frozen=True)
class Study(ABC):
    """A comparison, ladder, simulation, probe, coordinate check or register, read from its folder."""

    path: Path
    chosen: Sequence[str] = field(default=(), kw_only=True)
    """The series to show, in this order; all if empty."""
    styles: Mapping[str, Look] = field(default_factory=dict, kw_only=True)
    """Looks of all series of the page, of which these may be a part."""

    only: Sequence[str] = field(default=(), kw_only=True)
    """Figures or single panels to draw, by name; all figures if empty."""
    labels: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """By series, the name to write in figures."""
    size: Sequence[float] = field(default=(), kw_only=True)
    """Width and height of a panel inside its axes, in mm."""

    what: ClassVar[str]
    """The kind of study, in titles."""
    maker: ClassVar[str] = ""
    """The command that writes its folder."""
    columns: ClassVar[int] = 2
    """Charts in a row of a figure."""
    without_limits: ClassVar[str] = ""

    @classmethod
    def load(cls, path: Path) -> Self:
        """The study in a folder. GeonormError where a file is cut or is not what the others say, OSError where one is
        missing."""
        try:
            study = cls.read(path)
            study.text_lines()
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            why = f"{path} is damaged: {cause(error)}; the same geonorm {cls.maker} writes it anew"
            raise GeonormError(why) from None
        return study

    @classmethod
    def read(cls, path: Path) -> Self:
        """The study in a folder, unchecked: a damaged file raises any error. Here by its summary.json alone."""
        return cls(path, read_object_strictly(path / "summary.json"))  # type: ignore[call-arg, arg-type]

    @property
    @abstractmethod
    def series(self) -> list[str]:
        """Every series: schemes, or the models of a probe."""

    @property
    def names(self) -> list[str]:
        """The series to show, in order."""
        return [name for name in self.chosen if name in self.series] if self.chosen else self.series

    @property
    def keys(self) -> dict[str, str]:
        """By series, its entry in the legend of the page."""
        return {name: name for name in self.names}

    @property
    def schemes(self) -> dict[str, str]:
        """By entry of the legend, its scheme, which gives the colour."""
        return {key: key for key in self.keys.values()}

    @property
    def looks(self) -> dict[str, Look]:
        styles = self.styles or looks(list(self.schemes), self.schemes)
        return {name: styles[key] for name, key in self.keys.items()}

    @property
    def source(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def title(self) -> str:
        return f"{self.what}: {self.source}"

    def headline(self) -> str:
        """The answer in one sentence, the title of the page."""
        return next((sentence.partition(";")[0] for _, sentence in self.findings()), self.title)

    @property
    def limits_title(self) -> str:
        return f"What limits this {self.what.lower()}"

    @abstractmethod
    def caption(self) -> str:
        """Size, seeds and data, for every section and figure."""

    @abstractmethod
    def findings(self) -> list[tuple[str, str]]:
        """A sentence for each series."""

    def limits(self) -> list[str]:
        """What a reader must know before believing the numbers, as sentences."""
        return []

    @abstractmethod
    def tables(self) -> dict[str, Table]:
        """By title."""

    def notes(self) -> list[str]:
        """What the columns of the tables mean."""
        return []

    @abstractmethod
    def charts(self) -> dict[str, list[Chart]]:
        """The charts of each figure file."""

    @abstractmethod
    def sections(self, place: Mapping[str, int]) -> list[Section]:
        """The page below the findings. place: by series, the index of its entry in the legend."""

    @abstractmethod
    def records(self) -> list[Record]:
        """The rows of the CSV file."""

    def figures(self) -> dict[str, Spec]:
        """By the name of its file, each figure with something to show."""
        drawn = {name: charts for name, charts in self.charts().items() if charts}
        every = self.panels() if self.only else drawn
        chosen = {name: every[name] for name in self.only or drawn if name in every}
        if self.bare:
            return {
                name: figure(list(map(self._bare, charts)), columns=self.columns) for name, charts in chosen.items()
            }
        return {name: figure(charts, self.figure_caption(name), self.columns) for name, charts in chosen.items()}

    @property
    def bare(self) -> bool:
        """True for figures of a paper: without title and text, which its caption has."""
        return bool(self.labels or self.size)

    def _bare(self, chart: Chart) -> Chart:
        width, height = [round(mm * PIXELS_PER_MM) for mm in self.size] or (chart.width, chart.height)
        return replace(chart, title="", note="", labels={**chart.labels, **self.labels}, width=width, height=height)

    def panels(self) -> dict[str, list[Chart]]:
        """The charts of each figure, and each single chart and view by its own name."""
        drawn = {name: charts for name, charts in self.charts().items() if charts}
        views = [view for charts in drawn.values() for chart in charts for view in (chart, *chart.views)]
        return {**{view.name: [view] for view in views}, **drawn}

    def figure_caption(self, name: str) -> str:
        return self.caption()

    def text_tables(self, width: int) -> list[Table]:
        """The tables of the terminal."""
        return list(self.tables().values())

    def text_lines(self, width: int = WIDTH) -> list[str]:
        """The terminal's summary: tables, findings, limits and notes."""
        lines = []
        for titles, cells in self.text_tables(width):
            head, *rows = align(fit_width([titles, *cells], width))
            lines += [head, "-" * len(head), *rows, ""]
        sentences = [sentence for _, sentence in self.findings()]
        if limits := self.limits():
            sentences += ["", f"{self.limits_title}:", *(f"- {limit}" for limit in limits)]
        if notes := self.notes():
            sentences += ["", *notes]
        wrapped = (wrap(sentence, width, subsequent_indent="  ") or [""] for sentence in sentences)
        return lines + [line for each in wrapped for line in each]


def read_rows_strictly(file: Path) -> list[Record]:
    """The objects in a file of JSON lines. ValueError if a line is none, OSError if the file cannot be read."""
    return [_object(line, file.name) for line in file.read_text(encoding="utf-8").splitlines()]


def read_object_strictly(file: Path) -> Record:
    """The object in a JSON file. ValueError if it holds none, OSError if it cannot be read."""
    return _object(file.read_text(encoding="utf-8"), file.name)


def _object(text: str, name: str) -> Record:
    try:
        content = from_json(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{name} holds no JSON object")
    return content
