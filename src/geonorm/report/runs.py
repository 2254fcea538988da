"""Read run directories as they are: complete, failed, or cut off in the middle of a line."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

from ..lab.runs.folder import flatten, read_object, read_objects, read_summary, read_text, rows_of
from ..lab.statistics.comparison import Choice, Row, choose
from ..parsing import from_yaml
from .study import Record, Study

AnyPath = str | PathLike[str]


@dataclass(frozen=True)
class Run:
    """One run directory. `damaged` counts unreadable files, and unreadable lines but a last one that was cut short."""

    path: Path
    summary: Record
    config: Record
    config_text: str
    environment: list[Record]
    """One for each process that worked on the run."""
    metrics: list[Record]
    trace: list[Record]
    damaged: int
    norms: list[Record] = field(default_factory=list)

    @property
    def scheme(self) -> str:
        return str(self.summary["scheme"])

    @property
    def label(self) -> str:
        """The run in a few words, for a reader who points at it."""
        lr = self.summary.get("lr")
        return f"{self.scheme} · seed {self.summary.get('seed', '?')}" + (f" · lr {lr:g}" if lr else "")


@dataclass(frozen=True)
class ComparedRuns(Study):
    """Runs of several schemes, with the rows that `aggregate` makes of them."""

    all_runs: list[Run]
    all_rows: list[Row]
    folders: str
    """The names of the folders that the runs lie in."""
    command: str | None = None

    @property
    def series(self) -> list[str]:
        return [row["scheme"] for row in self.all_rows]

    @property
    def baseline(self) -> str:
        return str(self.all_rows[0]["baseline"])

    @property
    def rows(self) -> list[Row]:
        """The rows to show. Their statistics are those of the whole comparison (its baseline, p adjusted for all), so
        that leaving schemes out makes no difference more significant."""
        return [self.row(name) for name in self.names]

    @property
    def judged(self) -> list[Row]:
        """The rows that the results rest on: those to show, and that of the baseline."""
        return [self.row(name) for name in dict.fromkeys([self.baseline, *self.names])]

    @property
    def runs(self) -> list[Run]:
        schemes = {self.baseline, *self.names}
        return [run for run in self.all_runs if run.scheme in schemes]

    def row(self, scheme: str) -> Row:
        return next(row for row in self.all_rows if row["scheme"] == scheme)

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
        layers = [row["layer"] for run in self.runs for row in run.trace if row.get("layer") is not None]
        if layers:
            return int(max(layers)) + 1
        configured = flatten(self.runs[0].config).get("model.layers")
        return configured if isinstance(configured, int) else None


def read_run(path: Path) -> Run:
    """Read one run directory; what is missing is empty, and a run without a summary was interrupted."""
    config_text, summary = read_text(path / "config.yaml"), read_summary(path)
    config = _yaml(config_text)
    unreadable = bool(config_text and not config) + ((path / "summary.json").is_file() and not summary)
    metrics, damaged_metrics = _jsonl(path / "metrics.jsonl")
    trace, damaged_trace = _jsonl(path / "trace.jsonl")
    norms, damaged_norms = _jsonl(path / "norms.jsonl")
    last = metrics[-1] if metrics else {}
    fallback = {
        "status": "interrupted",
        "scheme": config.get("scheme") or (trace[0].get("scheme") if trace else None) or path.name,
        "seed": config.get("seed"),
        "lr": config.get("lr"),
        "tokens": last.get("tokens"),
    }
    return Run(
        path=path,
        summary=fallback | summary,
        config=config,
        config_text=config_text,
        environment=read_objects(path / "environment.json"),
        metrics=_latest(metrics, ("step",)),
        trace=_latest(trace, ("step", "layer", "kind")),
        damaged=unreadable + damaged_metrics + damaged_trace + damaged_norms,
        norms=_latest(norms, ("step", "layer", "kind", "norm")),
    )


def study_kind(path: Path) -> str:
    """What a directory holds: simulation, probe, ladder, comparison or run; as its settings say where its summary
    is lost."""
    summary = read_object(path / "summary.json")
    if summary.get("kind") in ("simulation", "probe"):
        return str(summary["kind"])
    settings = {} if "scheme" in summary else _yaml(read_text(path / "config.yaml"))
    if "models" in settings:
        return "probe"
    if "depth" in settings and "budgets" in settings:
        return "ladder"
    if "schemes" in settings:
        return "simulation" if "beta" in settings else "comparison"
    return "run"


def list_runs(root: Path) -> list[Path]:
    """Run directories at `root`, in root/runs, or directly below root."""
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
    return any((path / name).exists() for name in ("config.yaml", "metrics.jsonl", "trace.jsonl")) and (
        study_kind(path) == "run"
    )


def _latest(records: list[Record], keys: tuple[str, ...]) -> list[Record]:
    """One record per key, the last one written (a resumed run repeats steps), in order of step."""
    unique = {tuple(record.get(key) for key in keys): record for record in records}
    return sorted(unique.values(), key=lambda record: record.get("step") or 0)


def _jsonl(path: Path) -> tuple[list[Record], int]:
    """Records of a JSON-lines file and the number of damaged lines before the last one."""
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    before = list(rows_of(lines[:-1]))
    return [*before, *rows_of(lines[-1:])], len(lines[:-1]) - len(before)


def _yaml(text: str) -> Record:
    try:
        settings = from_yaml(text)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}
