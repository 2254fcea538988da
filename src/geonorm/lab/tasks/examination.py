"""Tasks asked of a model while it trains: questions loaded once, results as columns of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from ...nn.decoder import Decoder
from ..config import TrainConfig
from ..data import Tokenizer
from ..scale import parallel
from .tasks import Tasks, adapt_decoder, listener

PREFIX = "tasks/"
BATCH = 8
"""Questions at a time."""


class Examination:
    """The tasks of `evaluation.tasks` for one run. GeonormError for tasks that do not exist."""

    def __init__(self, config: TrainConfig, model: Decoder, tokenizer: Tokenizer) -> None:
        self.every = config.evaluation.task_every
        self.tasks = Tasks(config.evaluation.tasks, config.evaluation.task_limit)
        self.precision = partial(parallel.precision, config.runtime, model.embed.weight.device)
        self.model, fast = adapt_decoder(model, tokenizer)
        self.lm = listener(self.model, fast, BATCH)

    def due(self, step: int, last: bool) -> bool:
        return last or (self.every is not None and step % self.every == 0)

    def row(self) -> dict[str, float]:
        """Asks, and returns `tasks/NAME/METRIC`: value."""
        with self.precision():
            answers = self.tasks.ask(self.lm)
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
