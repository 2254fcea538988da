"""Read run directories as they are: complete, failed, or cut off in the middle of a line."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from ..lab.runs.folder import flatten, read_object, read_objects, read_summary, read_text, rows_of
from ..lab.statistics.comparison import Choice, Row, aggregate, choose
from ..parsing import from_yaml
from .atomic import Record, read_whole, refuse_damaged
from .source import SavedStudy

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
class SavedComparison(SavedStudy):
    """Runs of several schemes with the rows that `aggregate` makes of them."""

    runs: list[Run]
    rows: list[Row]
    source: str
    command: str | None = None
    hidden: list[Row] = field(default_factory=list)
    """Rows of schemes that are not shown."""

    @property
    def names(self) -> list[str]:
        return [row["scheme"] for row in self.rows]

    @property
    def judged(self) -> list[Row]:
        """Rows that what is shown rests on: its own, and that of the baseline."""
        return [row for row in self.hidden if row["scheme"] == self.baseline] + self.rows

    def only(self, names: Sequence[str], sort: str | None = None) -> SavedComparison:
        """Rows of these schemes alone, in this order, or by loss; what is said of each still is that of the whole
        comparison (its baseline, p adjusted for all), so that leaving some out makes none more significant."""
        rows = [self.row(name) for name in names if name in self.names] if names else self.rows
        if sort == "loss":
            rows = sorted(rows, key=lambda row: math.inf if row["val_loss_mean"] is None else row["val_loss_mean"])
        shown = {row["scheme"] for row in rows}
        runs = [run for run in self.runs if run.scheme in {self.baseline, *shown}]
        hidden = [row for row in [*self.rows, *self.hidden] if row["scheme"] not in shown]
        return replace(self, runs=runs, rows=rows, hidden=hidden)

    @property
    def baseline(self) -> str:
        return str(self.rows[0]["baseline"])

    def row(self, scheme: str) -> Row:
        return next(row for row in self.rows if row["scheme"] == scheme)

    def of(self, scheme: str) -> list[Run]:
        """Every run of the scheme, however it ended."""
        return [run for run in self.runs if run.scheme == scheme]

    @cached_property
    def choices(self) -> dict[str, Choice]:
        """Of each scheme, how its learning rate was chosen."""
        schemes = dict.fromkeys(run.scheme for run in self.runs)
        return {scheme: choose([run.summary for run in self.of(scheme)]) for scheme in schemes}

    def counted(self, scheme: str) -> list[Run]:
        """The runs behind the scheme's row: finished, at its best learning rate."""
        chosen = {id(summary) for summary in self.choices[scheme].runs}
        return [run for run in self.of(scheme) if id(run.summary) in chosen]

    def drawn(self, scheme: str) -> list[Run]:
        """The runs to draw as curves: the counted ones, or all of them where none finished."""
        return self.counted(scheme) or self.of(scheme)

    @property
    def depth(self) -> int | None:
        """Number of blocks, as the trace shows it or the configuration says it."""
        layers = [row["layer"] for run in self.runs for row in run.trace if row.get("layer") is not None]
        if layers:
            return int(max(layers)) + 1
        found = flatten(self.runs[0].config).get("model.layers")
        return found if isinstance(found, int) else None

    @property
    def data(self) -> str | None:
        """The corpus as the configuration names it."""
        found = self.runs[0].config.get("data")
        return None if found is None else Path(str(found)).name or str(found)


def load(dirs: Sequence[AnyPath] | AnyPath) -> SavedComparison:
    """Read every run under these directories. FileNotFoundError where there is none, or a directory is not there;
    GeonormError where results.json is damaged."""
    roots = [Path(dirs)] if isinstance(dirs, (str, PathLike)) else [Path(d) for d in dirs]
    paths = list(dict.fromkeys(path for root in roots for path in _run_paths(root)))
    absent = [root for root in roots if not root.exists()]
    if absent or not paths:
        raise FileNotFoundError(f"no run directory in {', '.join(map(str, absent or roots))}")
    results: dict[Path, Record] = {}
    rows: list[tuple[str, Any]] = []
    for folder in [*roots, *_studies(roots, paths)]:
        with refuse_damaged(folder / "results.json", "ladder" if study_kind(folder) == "ladder" else "compare") as file:
            results[folder] = read_whole(file) if file.is_file() else {}
            rows += _baselines(results[folder])
    order = [scheme for scheme, _ in rows]
    order.append("pre")  # the usual baseline leads where nothing else is on record
    runs = sorted(map(read_run, paths), key=lambda run: _place(run.scheme, order))
    named = [name for _, name in rows]
    baseline = next((name for name in named if any(run.scheme == name for run in runs)), None)
    command = next((results[root]["command"] for root in roots if results[root].get("command")), None)
    places = [root.resolve() for root in roots]
    sources = [places[0].name] if len(paths) == 1 else dict.fromkeys(map(_source, places))
    return SavedComparison(
        runs=runs,
        rows=aggregate([run.summary for run in runs], baseline),
        source=", ".join(sources),
        command=repeat_elsewhere(command) if command else None,
    )


def _baselines(results: Record) -> list[tuple[str, Any]]:
    """Schemes of a comparison or a ladder and what each is compared with, in the order of the whole study."""
    rows: list[Record] = results["schemes"] if "schemes" in results else results.get("points", [])
    order: list[str] = results.get("order", [])
    ordered = sorted(rows, key=lambda row: _place(str(row["scheme"]), order)[0])
    return [(str(row["scheme"]), row.get("baseline")) for row in ordered]


def repeat_elsewhere(command: list[str]) -> str:
    """The command with another --out, as a line of shell: with its own it would find everything done."""
    words = [part for word in command for part in (word.split("=", 1) if word.startswith("--out=") else [word])]
    at = words.index("--out") if "--out" in words else len(words)
    return shlex.join([*words[:at], "--out", "NEW", *words[at + 2 :]])


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


def _run_paths(root: Path) -> list[Path]:
    """Run directories at `root`, in root/runs, or directly below root."""
    if _is_run(root):
        return [root]
    for parent in (root / "runs", root):
        children = sorted(filter(_is_run, parent.iterdir())) if parent.is_dir() else []
        if children:
            return children
    return []


def _studies(roots: Sequence[Path], paths: Sequence[Path]) -> list[Path]:
    """The comparisons and ladders, not among `roots`, in whose runs/ some of these runs lie: they say what the first
    scheme is."""
    runs = dict.fromkeys(path.resolve().parent for path in paths)
    studies = [folder.parent for folder in runs if folder.name == "runs"]
    given = {root.resolve() for root in roots}
    return [study for study in studies if study not in given and study_kind(study) in ("comparison", "ladder")]


def _source(root: Path) -> str:
    """The name of a comparison, for a run that of the directory it lies in."""
    parent = root.parent if _is_run(root) else root
    return (parent.parent if parent.name == "runs" else parent).name


def _is_run(path: Path) -> bool:
    if not path.is_dir() or (path / "runs").is_dir():
        return False
    return any((path / name).exists() for name in ("config.yaml", "metrics.jsonl", "trace.jsonl")) and (
        study_kind(path) == "run"
    )


def _place(scheme: str, order: Sequence[str]) -> tuple[int, str]:
    return (order.index(scheme), "") if scheme in order else (len(order), scheme)


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
        found = from_yaml(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
