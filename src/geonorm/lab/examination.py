"""Tasks asked of a model while it trains: questions loaded once, results as columns of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import ConfigError
from ..nn.decoder import Decoder
from . import parallel
from .config import TrainConfig
from .data import Tokenizer
from .tasks import AsCausalLM, Tasks, fast, listener

PREFIX = "tasks/"
BATCH = 8
"""Questions at a time."""


class Examination:
    """The tasks of `evaluation.tasks` for one run. GeonormError for tasks that do not exist or that generate text."""

    def __init__(self, config: TrainConfig, model: Decoder, tokenizer: Tokenizer) -> None:
        self.every, self.model = config.evaluation.task_every, model
        self.tasks = Tasks(config.evaluation.tasks, config.evaluation.task_limit)
        for name, task in self.tasks.loaded["tasks"].items():
            if task.OUTPUT_TYPE == "generate_until":
                raise ConfigError(f"task {name} generates text: ask it of the finished run, with geonorm eval")
        with TemporaryDirectory() as folder:
            tokenizer.save(Path(folder) / "tokenizer.json")
            theirs = fast(Path(folder) / "tokenizer.json")
        device = model.embed.weight.device
        view = AsCausalLM(model, partial(parallel.precision, config.runtime, device))
        self.lm = listener(view, theirs, BATCH)

    def due(self, step: int, last: bool) -> bool:
        return last or (self.every is not None and step % self.every == 0)

    def row(self) -> dict[str, float]:
        """Asks, and returns `tasks/NAME/METRIC`: value."""
        was_training = self.model.training
        self.model.eval()
        answers = self.tasks.ask(self.lm)
        self.model.train(was_training)
        return {f"{PREFIX}{name}/{metric}": v for name, found in answers.items() for metric, v in found.items()}


def last_answers(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The last results by task, from rows of metrics."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(PREFIX):
                name, _, metric = key.removeprefix(PREFIX).rpartition("/")
                found.setdefault(name, {})[metric] = value
    return found
