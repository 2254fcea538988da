"""Where the numbers of a run go besides its own metrics.jsonl: anything with `log(row, step)` and `finish(status)`.

TensorBoard's files lie in the run's directory. The trackers (W&B, trackio, MLflow) are other people's packages, which
are imported only when asked for (`--log.to`); where they write, and as whom, their own variables and logins say
(WANDB_MODE, TRACKIO_DIR, MLFLOW_TRACKING_URI, ...). A run that goes on is the same run there: its name of eight digits
is kept in tracked.json.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ...errors import GeonormError, cause
from ..config import TrainConfig
from .run import RunFolder, flatten, read_object

TRACKED = "tracked.json"
FINISHED = "finished"


class Logger(Protocol):
    """Takes the numbers of a run, a row a step."""

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Losses, rates, norms, speeds by name, after this step; steps ascend."""

    def finish(self, status: str) -> None:
        """Nothing more comes; finished, interrupted, diverged or failed."""


@dataclass(frozen=True)
class Start:
    """What a logger is told of the run when it opens."""

    path: Path
    """Its directory."""
    settings: Mapping[str, Any]
    """All of them, nested, the model's with what the preset says."""
    step: int
    """Steps that it has made."""
    project: str
    id: str
    """The run's name for trackers, the same each time it goes on."""

    @property
    def group(self) -> str | None:
        """The comparison or ladder that the run belongs to."""
        folder = self.path.absolute().parent
        return folder.parent.name if folder.name == "runs" else None


class TensorBoard:
    def __init__(self, library: Any, start: Start) -> None:
        self.writer = library.SummaryWriter(str(start.path / "tensorboard"), purge_step=start.step + 1)
        text = json.dumps(start.settings, indent=1)
        self.writer.add_text("settings", "\n".join(f"    {line}" for line in text.splitlines()), start.step)

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self.writer.add_scalar(name, value, step)

    def finish(self, status: str) -> None:
        self.writer.close()


class WandB:
    """Steps that were logged already are dropped by W&B, with its own warning."""

    def __init__(self, library: Any, start: Start) -> None:
        self.run = library.init(
            project=start.project, name=start.path.name, group=start.group, id=start.id, resume="allow",
            config=dict(start.settings), allow_val_change=True, dir=str(start.path),
        )  # fmt: skip

    def log(self, row: Mapping[str, float], step: int) -> None:
        self.run.log(dict(row), step=step)

    def finish(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == FINISHED else 1)


class Trackio:
    """Runs of a project are told apart by name alone there: ours has the id behind it."""

    def __init__(self, library: Any, start: Start) -> None:
        self.run = library.init(
            project=start.project, name=f"{start.path.name}-{start.id}", group=start.group, resume="allow",
            config=dict(start.settings), embed=False,
        )  # fmt: skip

    def log(self, row: Mapping[str, float], step: int) -> None:
        self.run.log(dict(row), step=step)

    def finish(self, status: str) -> None:
        self.run.finish()


class MLflow:
    """The project is an experiment. Settings are parameters, which MLflow never changes: those of the first start."""

    def __init__(self, library: Any, start: Start) -> None:
        self.client, self.entities, self.sent = library.MlflowClient(), library.entities, list[Any]()
        known = self.client.get_experiment_by_name(start.project)
        experiment = known.experiment_id if known else self.client.create_experiment(start.project)
        found = self.client.search_runs([experiment], f"tags.geonorm = '{start.id}'")
        if found:
            self.id = found[0].info.run_id
            self.client.set_terminated(self.id, "RUNNING")
            return
        tags = {"geonorm": start.id, **({"group": start.group} if start.group else {})}
        self.id = self.client.create_run(experiment, run_name=start.path.name, tags=tags).info.run_id
        params = [self.entities.Param(name, str(value)[:500]) for name, value in flatten(dict(start.settings)).items()]
        for first in range(0, len(params), 100):  # no more at a time
            self.client.log_batch(self.id, params=params[first : first + 100])

    def log(self, row: Mapping[str, float], step: int) -> None:
        metrics = [self.entities.Metric(name, value, int(1000 * time.time()), step) for name, value in row.items()]
        self.sent.append(self.client.log_batch(self.id, metrics=metrics, synchronous=False))

    def finish(self, status: str) -> None:
        for batch in self.sent:  # several threads send them, in no order
            batch.wait()
        ends = {FINISHED: "FINISHED", "interrupted": "KILLED"}
        self.client.set_terminated(self.id, ends.get(status, "FAILED"))


Opener = Callable[[Any, Start], Logger]
TRACKERS: dict[str, tuple[str, str, Opener]] = {
    "wandb": ("W&B", "wandb", WandB),
    "trackio": ("trackio", "trackio", Trackio),
    "mlflow": ("MLflow", "mlflow", MLflow),
}
"""By the word of --log.to, which is that of the extra too: name, module, logger."""


def find_loggers(config: TrainConfig) -> dict[str, tuple[Any, Opener]]:
    """The loggers that a run asks for, their packages imported, by name. GeonormError for one that is not here."""
    found: dict[str, tuple[Any, Opener]] = {}
    if config.runtime.tensorboard:
        try:
            found["TensorBoard"] = import_module("torch.utils.tensorboard"), TensorBoard
        except ImportError:
            raise GeonormError(
                "TensorBoard is missing: pip install geonorm[train], or --runtime.tensorboard false"
            ) from None
    for word in config.log.to:
        name, module, opener = TRACKERS[word]
        try:
            found[name] = import_module(module), opener
        except ImportError:
            raise GeonormError(
                f"{name} is missing: pip install 'geonorm[{word}]', or leave {word} out of --log.to"
            ) from None
    return found


class Loggers:
    """All loggers of a run as one. A tracker that fails is told of in a line and left alone: the run goes on, and
    metrics.jsonl has every row. What fails to start is a GeonormError; an error of TensorBoard is one of the disk."""

    def __init__(self) -> None:
        self.status = "failed"
        self.open: list[tuple[str, Logger]] = []

    def start(
        self, found: Mapping[str, tuple[Any, Opener]], more: Iterable[Logger], start: Start, say: Callable[[str], None]
    ) -> None:
        self.say = say
        for name, (library, opener) in found.items():
            try:
                self.open.append((name, opener(library, start)))
            except OSError:
                raise
            except Exception as error:
                self.close()
                raise GeonormError(f"{name} does not start: {cause(error)}") from error
        self.open += [(type(logger).__name__, logger) for logger in more]

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Numbers of rows of metrics; what is none, they do not get."""
        for row in rows:
            numbers = {
                name: value
                for name, value in row.items()
                if name not in ("step", "tokens") and isinstance(value, (int, float))
            }
            self.each("log", numbers, row["step"])

    def close(self) -> None:
        self.each("finish", self.status)
        self.open.clear()

    def each(self, method: str, *arguments: Any) -> None:
        for name, logger in list(self.open):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                if isinstance(logger, TensorBoard):
                    raise
                self.open.remove((name, logger))
                self.say(f"{name}: {cause(error)}; it gets no more of this run")


def tracked_id(run: RunFolder) -> str:
    """The id of a run for trackers, made when it is first asked for."""
    known = read_object(run.path / TRACKED).get("id")
    if not (isinstance(known, str) and known.isalnum()):
        known = secrets.token_hex(4)
        run.write(TRACKED, {"id": known})
    return known
