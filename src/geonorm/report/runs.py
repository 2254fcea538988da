"""Runs of several schemes, compared, as the charts and sentences of a report read them."""

from dataclasses import dataclass
from functools import cached_property

from ..lab.load import Run
from ..lab.runs.folder import flatten
from ..lab.runs.records import ComparisonRow
from ..lab.statistics.comparison import Choice, choose
from .study import Study


@dataclass(frozen=True)
class ComparedRuns(Study):
    """Runs of several schemes, with the rows that `aggregate` makes of them."""

    all_runs: list[Run]
    all_rows: list[ComparisonRow]
    folders: str
    """The names of the folders that the runs lie in."""
    command: str | None = None

    @property
    def series(self) -> list[str]:
        return [row.scheme for row in self.all_rows]

    @property
    def baseline(self) -> str:
        return str(self.all_rows[0].baseline)

    @property
    def rows(self) -> list[ComparisonRow]:
        """The rows to show. Their statistics are those of the whole comparison (its baseline, p adjusted for all), so
        that leaving schemes out makes no difference more significant."""
        return [self.row(name) for name in self.names]

    @property
    def judged(self) -> list[ComparisonRow]:
        """The rows that the results rest on: those to show, and that of the baseline."""
        return [self.row(name) for name in dict.fromkeys([self.baseline, *self.names])]

    @property
    def runs(self) -> list[Run]:
        return [run for run in self.all_runs if run.scheme in {self.baseline, *self.names}]

    def row(self, scheme: str) -> ComparisonRow:
        return next(row for row in self.all_rows if row.scheme == scheme)

    def runs_of(self, scheme: str) -> list[Run]:
        """Every run of the scheme, however it ended."""
        return [run for run in self.all_runs if run.scheme == scheme]

    @cached_property
    def choices(self) -> dict[str, Choice]:
        """By scheme, how its learning rate was chosen."""
        return {scheme: choose([run.summary for run in self.runs_of(scheme)]) for scheme in self.series}

    def counted(self, scheme: str) -> list[Run]:
        """The runs behind the scheme's row: finished, at its best learning rate."""
        chosen = {id(summary) for summary in self.choices[scheme].runs}
        return [run for run in self.runs_of(scheme) if id(run.summary) in chosen]

    def drawn(self, scheme: str) -> list[Run]:
        """The runs to draw as curves: the counted ones, or all of them where none finished."""
        return self.counted(scheme) or self.runs_of(scheme)

    @property
    def depth(self) -> int | None:
        """The number of blocks, from the trace or the configuration."""
        layers = [row.layer for run in self.runs for row in run.trace if row.layer is not None]
        configured = flatten(self.runs[0].config).get("model.layers")
        return int(max(layers)) + 1 if layers else configured
