"""Where the numbers of a run go besides its own metrics.jsonl: anything that is called with a row and its step.

TensorBoard's files lie in the run's directory. The trackers (W&B, trackio) are other people's packages, which are
imported only when asked for (`--log.to`); where they write, and as whom, their own variables and logins say
(WANDB_MODE, TRACKIO_DIR, ...), and WANDB_PROJECT the project of both. A run that goes on is the same run there: its
name of eight digits is in tracked.json.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import GeonormError, cause, import_extra
from .folder import RunFolder, read_object

TRACKED = "tracked.json"
Logger = Callable[[Mapping[str, float], int], object]
"""Takes losses, rates, norms, speeds by name, and the step after which they are; steps ascend."""


@dataclass(frozen=True)
class Start:
    """What a tracker is told of the run when it opens."""

    path: Path
    """Its directory."""
    settings: Mapping[str, Any]
    """All of them, nested, the model's with what the preset says."""
    step: int
    """Steps that it has made."""
    id: str
    """The run's name for trackers, the same each time it goes on."""

    @property
    def project(self) -> str:
        return os.environ.get("WANDB_PROJECT") or "geonorm"

    @property
    def group(self) -> str | None:
        """The comparison or ladder that the run belongs to."""
        folder = self.path.absolute().parent
        return folder.parent.name if folder.name == "runs" else None


@contextmanager
def tensorboard(library: Any, start: Start) -> Iterator[Logger]:
    with library.SummaryWriter(str(start.path / "tensorboard"), purge_step=start.step + 1) as writer:
        text = json.dumps(start.settings, indent=1)
        writer.add_text("settings", "\n".join(f"    {line}" for line in text.splitlines()), start.step)
        yield lambda row, step: [writer.add_scalar(name, value, step) for name, value in row.items()]


@contextmanager
def wandb(library: Any, start: Start) -> Iterator[Logger]:
    """Steps that were logged already are dropped by W&B, with its own warning."""
    with library.init(
        project=start.project, name=start.path.name, group=start.group, id=start.id, resume="allow",
        config=dict(start.settings), allow_val_change=True, dir=str(start.path),
    ) as run:  # fmt: skip
        yield lambda row, step: run.log(dict(row), step=step)


@contextmanager
def trackio(library: Any, start: Start) -> Iterator[Logger]:
    """Runs of a project are told apart by name alone there: ours has the id after it."""
    run = library.init(
        project=start.project, name=f"{start.path.name}-{start.id}", group=start.group, resume="allow",
        config=dict(start.settings), embed=False,
    )  # fmt: skip
    try:
        yield lambda row, step: run.log(dict(row), step=step)
    finally:
        run.finish()


LOGGERS: dict[str, tuple[str, Callable[[Any, Start], AbstractContextManager[Logger]], str]] = {
    "TensorBoard": ("torch.utils.tensorboard", tensorboard, "train"),
    "wandb": ("wandb", wandb, "wandb"),
    "trackio": ("trackio", trackio, "trackio"),
}
"""By the word of --log.to: module, logger, and the extra that brings it."""


def find_loggers(names: Iterable[str]) -> dict[str, Any]:
    """The packages of loggers by name, TensorBoard or a word of --log.to. ConfigError for one that is not here."""
    return {name: import_extra(LOGGERS[name][0], f"logging to {name}", LOGGERS[name][2]) for name in names}


class Loggers:
    """All loggers of a run as one. A tracker that fails is told of in a line and left alone: the run goes on, and
    metrics.jsonl has every row. What fails to start is a GeonormError; an error of TensorBoard is one of the disk."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[Logger, AbstractContextManager[Logger]]] = {}

    def start(
        self, libraries: Mapping[str, Any], more: Iterable[Logger], start: Start, say: Callable[[str], None]
    ) -> None:
        self.say = say
        for name, library in libraries.items():
            context = LOGGERS[name][1](library, start)
            try:
                self.open[name] = context.__enter__(), context
            except OSError:
                raise
            except Exception as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise GeonormError(f"{name} does not start: {cause(error)}") from error
        for logger in more:
            name = f"{getattr(logger, '__name__', type(logger).__name__)} {len(self.open)}"
            self.open[name] = logger, nullcontext(logger)

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Numbers of rows of metrics; what is none, they do not get."""
        for row in rows:
            numbers = {
                name: value
                for name, value in row.items()
                if name not in ("step", "tokens") and isinstance(value, (int, float))
            }
            for name, (logger, _) in list(self.open.items()):
                self.attempt(name, logger, numbers, row["step"])

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, *error: Any) -> None:
        for name, (_, context) in list(self.open.items()):
            self.attempt(name, context.__exit__, *error)
        self.open.clear()

    def attempt(self, name: str, call: Callable[..., object], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            if name == "TensorBoard":
                raise
            del self.open[name]
            self.say(f"{name}: {cause(error)}; it gets no more of this run")


def tracked_id(run: RunFolder) -> str:
    """The id of a run for trackers, made when it is first asked for."""
    known = read_object(run.path / TRACKED).get("id")
    if not (isinstance(known, str) and known.isalnum()):
        known = secrets.token_hex(4)
        run.write(TRACKED, {"id": known})
    return known
