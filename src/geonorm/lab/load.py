"""`geonorm.load`: the one way to read results, of a run, comparison, ladder or any other study.

Folders are read as they are: complete, failed, or cut off in the middle of a line. No torch here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ..errors import GeonormError, near_folder, require
from ..parsing import from_yaml
from ..results import Result, Rows
from .runs.folder import read_object, read_objects, read_rows, read_summary, read_text, rows_of, rows_sha256_of
from .runs.identity import identity_sha256, recorded_identity
from .runs.ladder_records import LadderPoint, SpeedupRow, TrendRow
from .runs.records import ComparisonRow, MetricRow, Record, Summary, TraceRow
from .statistics.comparison import aggregate

Row = TypeVar("Row", bound=Record)
KINDS: dict[str, type[Record]] = {"metrics": MetricRow, "trace": TraceRow, "norms": TraceRow}
"""The kind of record in each file of rows of a run."""
LINES = {"sites": "trace", "norms": "norms", "ablation": "ablation"}
"""The name of the file of each table of a probe."""


@dataclass(frozen=True, repr=False)
class Saved(Result):
    """A folder of results."""

    path: Path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path})"

    @contextmanager
    def folder(self) -> Iterator[Path]:
        yield self.path


@dataclass(frozen=True, repr=False)
class Run(Saved):
    """A run's folder. Tables: metrics, trace and norms, rows in order of step, and summary. Its files are read when
    they are asked for; of a run without summary.json, `summary.status` is interrupted."""

    summary: Summary

    @property
    def scheme(self) -> str:
        return self.summary.scheme

    @property
    def label(self) -> str:
        """The run in a few words."""
        lr, seed = self.summary.lr, self.summary.seed
        return f"{self.scheme} · seed {'?' if seed is None else seed}" + (f" · lr {lr:g}" if lr else "")

    @cached_property
    def config_text(self) -> str:
        return read_text(self.path / "config.yaml")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its settings as a tree; empty where they cannot be read."""
        return yaml_object(self.config_text)

    @cached_property
    def environment(self) -> list[dict[str, Any]]:
        """One object for each process that worked on the run."""
        return read_objects(self.path / "environment.json")

    @cached_property
    def metrics(self) -> list[MetricRow]:
        return read_records(self.path / "metrics.jsonl", MetricRow, "step")

    @cached_property
    def trace(self) -> list[TraceRow]:
        return read_records(self.path / "trace.jsonl", TraceRow, "step", "layer", "kind")

    @cached_property
    def norms(self) -> list[TraceRow]:
        return read_records(self.path / "norms.jsonl", TraceRow, "step", "layer", "kind", "norm")

    @cached_property
    def damaged(self) -> int:
        """Number of unreadable files and lines (a last line that was cut short does not count), plus 1 if the files are
        not all of one run."""
        no_summary = (self.path / "summary.json").is_file() and read_summary(self.path) is None
        damaged = sum((no_summary, bool(self.config_text and not self.config), self.mixed))
        for name, kind in KINDS.items():
            lines = [line for line in read_text(self.path / f"{name}.jsonl").split("\n")[:-1] if line.strip()]
            readable = [row for row in rows_of(lines) if kind.read_or_none(row) is not None]
            damaged += len(lines) - len(readable)
        return damaged

    @property
    def mixed(self) -> bool:
        """True if settings, summary and rows do not all belong to the run that its record describes."""
        identity = (self.environment or [{}])[-1].get("identity")
        if identity is None:
            return False
        same_settings = identity_sha256(recorded_identity(self.path, self.config)) == identity
        same_summary = self.summary.identity in (None, identity)
        same_rows = self.summary.rows_sha256 in (None, rows_sha256_of(self.path))
        return not (same_settings and same_summary and same_rows)

    def tables(self) -> dict[str, Rows]:
        return {
            "metrics": objects(self.metrics), "trace": objects(self.trace), "norms": objects(self.norms),
            "summary": [self.summary.row()],
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Comparison(Saved):
    """A comparison's folder. `rows` has a scheme each, at its best learning rate, the baseline first. Tables: schemes,
    runs, and metrics, trace and norms of all runs, with the columns run, scheme, lr and seed."""

    runs: list[Run]
    rows: list[ComparisonRow]
    command: list[str] | None = None
    """The command that made it, as a list of words."""

    def tables(self) -> dict[str, Rows]:
        tables: dict[str, Rows] = {"schemes": objects(self.rows), "runs": objects([run.summary for run in self.runs])}
        for name in ("metrics", "trace", "norms"):
            tables[name] = [
                {**row, "run": run.summary.run, "lr": run.summary.lr, "seed": run.summary.seed, "scheme": run.scheme}
                for run in self.runs
                for row in map(rename_columns, objects(getattr(run, name)))
            ]
        return tables


@dataclass(frozen=True, repr=False)
class Ladder(Saved):
    """A ladder's folder. Tables: speedups (a row per scheme and size), points (a row per scheme, size and budget),
    trends, runs."""

    results: dict[str, Any]
    """The content of results.json."""

    @property
    def baseline(self) -> str:
        return str(self.results["baseline"])

    @cached_property
    def speedups(self) -> list[SpeedupRow]:
        return [SpeedupRow.read(row) for row in self.results["speedups"]]

    @cached_property
    def points(self) -> list[LadderPoint]:
        return [LadderPoint.read(row) for row in self.results["points"]]

    @cached_property
    def trends(self) -> list[TrendRow]:
        return [TrendRow.read(row) for row in self.results["trends"]]

    @cached_property
    def runs(self) -> list[Run]:
        summaries = [Summary.read(row) for row in self.results["runs"]]
        return [Run(self.path / "runs" / str(summary.run), summary) for summary in summaries]

    def tables(self) -> dict[str, Rows]:
        return {name: self.results[name] for name in ("speedups", "points", "trends", "runs")}


@dataclass(frozen=True, repr=False)
class SavedStudy(Saved):
    """The folder of another study: its summary.json, and tables: of a probe sites, norms, ablation and layers; of a
    simulation schemes and trace; of a benchmark rows; of a register rules; of a coordinate check schemes."""

    kind: str
    summary: dict[str, Any]

    def tables(self) -> dict[str, Rows]:
        if self.kind == "probe":
            return {name: list(read_rows(self.path / f"{file}.jsonl")) for name, file in LINES.items()}
        if self.kind == "simulation":
            return {"schemes": self.summary.get("schemes", []), "trace": list(read_rows(self.path / "trace.jsonl"))}
        return {name: self.summary[name] for name in ("rows", "rules", "schemes") if name in self.summary}


def load(folder: str | PathLike[str]) -> Run | Comparison | Ladder | SavedStudy:
    """Read what `geonorm train`, `compare`, `ladder`, `probe`, `simulate`, `register`, `check-transfer` or `bench`
    wrote into a folder.

    What is returned has typed records, `.frame(table)`, a pandas.DataFrame, and `.plot(figure)`, a figure of the
    report. The rows of a comparison are computed anew from the runs that are there; a folder with a results.jsonl, a
    run's summary a line, is a comparison, too. Raises GeonormError where there are no results.

        comparison = geonorm.load("runs/mine")
        comparison.rows[1].difference      # to the first scheme, nats a token
        comparison.runs[0].metrics[-1].loss
        comparison.frame("metrics")
        comparison.plot("loss_curves")

    >>> import json, pathlib
    >>> runs = [{"status": "finished", "scheme": s, "seed": k, "lr": 0.01, "val_loss": loss + k / 10}
    ...         for s, loss in (("pre", 3.0), ("geonorm", 2.75)) for k in (0, 1)]
    >>> lines = "".join(json.dumps(run) + "\\n" for run in runs)
    >>> _ = pathlib.Path("results.jsonl").write_text(lines)
    >>> comparison = geonorm.load(".")
    >>> [(row.scheme, row.n, row.difference) for row in comparison.rows]
    [('pre', 2, 0.0), ('geonorm', 2, -0.25)]
    """
    path = Path(folder)
    if not path.is_dir():
        raise GeonormError(f"there is no folder {path}{near_folder(str(path))}")
    kind = study_kind(path)
    if kind not in ("ladder", "comparison", "run"):
        return SavedStudy(path, kind, read_object(path / "summary.json"))
    if kind == "ladder":
        if "points" not in (results := read_object(path / "results.json")):
            raise GeonormError(f"{path} holds no results yet: its ladder has not finished")
        return Ladder(path, results)
    return read_run(path) if is_run(path) else read_comparison(path)


def read_comparison(path: Path) -> Comparison:
    """The comparison in a folder; GeonormError if it holds no run. Runs whose folders are gone, or never were, are as
    results.json and results.jsonl say."""
    results = read_object(path / "results.json")
    rows, order = listed(results, "schemes"), listed(results, "order")
    runs: dict[str, Run] = {}
    for row in [*read_rows(path / "results.jsonl"), *listed(results, "runs")]:
        if summary := Summary.read_or_none(row):
            name = summary.run = summary.run or f"{len(runs)}"
            runs[name] = Run(path / "runs" / name, summary)
    runs |= {run.path.name: run for run in map(read_run, list_runs(path))}
    require(runs, f"{path} holds no results of geonorm", GeonormError)
    order = order or [row.get("scheme") for row in rows]
    ordered = sorted(runs.values(), key=lambda run: order.index(run.scheme) if run.scheme in order else len(order))
    baseline = next((row.get("baseline") for row in rows), None)
    baseline = baseline if any(run.scheme == baseline for run in ordered) else None
    table = aggregate([run.summary for run in ordered], baseline)
    return Comparison(path, ordered, table, listed(results, "command") or None)


def read_run(path: Path) -> Run:
    """The run in a folder; what is missing is empty, and a run without a summary was interrupted."""
    summary = read_summary(path) or interrupted(path)
    summary.run = summary.run or path.name
    return Run(path, summary)


def interrupted(path: Path) -> Summary:
    """The summary of a run that left none, by its settings and rows."""
    config = yaml_object(read_text(path / "config.yaml"))
    metrics = read_records(path / "metrics.jsonl", MetricRow, "step")
    status = {"status": "interrupted", "scheme": path.name, "tokens": metrics[-1].tokens if metrics else None}
    known = {name: config[name] for name in ("scheme", "seed", "lr") if name in config}
    return Summary.read_or_none(status | known) or Summary.read(status)


def study_kind(path: Path) -> str:
    """What a folder holds: simulation, probe, transfer, register, bench, ladder, comparison or run; as its settings say
    where its summary is lost."""
    summary = read_object(path / "summary.json")
    if summary.get("kind") in ("simulation", "probe", "transfer", "register"):
        return str(summary["kind"])
    if "rows" in summary:
        return "bench"
    settings = {} if "scheme" in summary else yaml_object(read_text(path / "config.yaml"))
    if "models" in settings:
        return "probe"
    if "depth" in settings and "budgets" in settings:
        return "ladder"
    if "schemes" in settings:
        return "simulation" if "beta" in settings else "comparison"
    return "run"


def list_runs(root: Path) -> list[Path]:
    """Run folders: `root` itself, those in root/runs, or those directly below root."""
    if is_run(root):
        return [root]
    for parent in (root / "runs", root):
        children = sorted(filter(is_run, parent.iterdir())) if parent.is_dir() else []
        if children:
            return children
    return []


def is_run(path: Path) -> bool:
    if not path.is_dir() or (path / "runs").is_dir():
        return False
    files = ("config.yaml", "metrics.jsonl", "trace.jsonl")
    return any((path / name).exists() for name in files) and study_kind(path) == "run"


def read_records(path: Path, kind: type[Row], *keys: str) -> list[Row]:
    """Records of a JSON-lines file in order of step, the last one of each key: a resumed run repeats steps. Lines that
    a crash cut short or damaged are passed over."""
    rows = map(kind.read_or_none, read_rows(path))
    unique = {tuple(row.get(key) for key in keys): row for row in rows if row is not None}
    return sorted(unique.values(), key=lambda row: row.get("step", 0))


def listed(results: dict[str, Any], key: str) -> list[Any]:
    """A list in a file that may have been edited; empty if there is none."""
    value = results.get(key)
    return value if isinstance(value, list) else []


def yaml_object(text: str) -> dict[str, Any]:
    try:
        return from_yaml(text)
    except ValueError:
        return {}


def objects(rows: Sequence[Record]) -> list[dict[str, Any]]:
    return [row.row() for row in rows]


def rename_columns(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a run's file with two columns renamed, whose names are those of columns of the run: the learning rate of
    the step, and the scheme of the sub-layer, which is a part where the run's scheme combines several."""
    names = {"lr": "step_lr", "scheme": "site_scheme"}
    return {names.get(name, name): value for name, value in row.items()}
