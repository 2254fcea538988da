"""Held-out text of a run: a sample of it while the run trains, at its end a larger part or the whole."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..config import Evaluation
from ..data import TokenData
from ..data.batches import NEXT_TOKEN, Objective, validation_batches
from ..distributed.ranks import ALONE, World
from .held_out import evaluate_held_out

EVALUATION_BATCH = 4096
"""Tokens of a forward pass in evaluations."""
TRAINED_PER_SAMPLED, TRAINED_PER_FINAL = 16, 8
"""Tokens of training for each token that an evaluation reads, while the run trains and at its end: a forward pass takes
under a third of the time of a step, so evaluations take some 2 % and 4 % of a run."""
FINAL_TOKENS = 65536
"""Most tokens of the last evaluation of a run that does not read the whole validation text."""
MEASURES = ("val_loss", "val_bpb", "val_accuracy")


class Validation:
    """The held-out text of one run, and what is measured on it."""

    def __init__(
        self,
        tokens: TokenData,
        evaluation: Evaluation,
        context: int,
        seen: int,
        device: torch.device,
        world: World = ALONE,
        objective: Objective = NEXT_TOKEN,
        interval: int | None = None,
    ) -> None:
        """seen: tokens that the run trains on. interval: tokens trained on between two evaluations."""
        self.tokens, self.context, self.device, self.world = tokens, context, device, world
        self.objective = objective
        self.rows = max(1, EVALUATION_BATCH // context)
        self.trace_tokens = evaluation.trace_tokens
        self.whole = (
            TRAINED_PER_FINAL * len(tokens.validation) <= seen if evaluation.whole is None else evaluation.whole
        )
        """True if the whole validation text is measured at the end."""
        most = evaluation.tokens or max(EVALUATION_BATCH, min(FINAL_TOKENS, seen // TRAINED_PER_FINAL))
        self.part = list(validation_batches(tokens.validation, self.rows, context, most, objective))
        """Batches of the last evaluation, spread over the validation text."""
        few = most if interval is None else max(EVALUATION_BATCH, interval // TRAINED_PER_SAMPLED)
        self.sample = self.part
        """Batches of the evaluations before the last: fewer, or the same where that costs little."""
        if few < most:
            self.sample = list(validation_batches(tokens.validation, self.rows, context, few, objective))

    def trace_ids(self) -> Tensor:
        """Whole rows of the part, spread over it, at least one."""
        ids = torch.cat([ids for ids, _ in self.part])
        count = min(len(ids), max(1, self.trace_tokens // self.context))
        return ids[torch.arange(count) * len(ids) // count].to(self.device)

    def measure_batches(self, model: Any, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
        """val_loss, val_bpb and, of masked tokens, val_accuracy; val_tokens, those that are predicted."""
        token_bytes, accuracy = self.tokens.token_bytes, self.objective.accuracy
        result = evaluate_held_out(model, batches, token_bytes, self.device, self.world, accuracy)
        return {key: result[key] for key in MEASURES if key in result} | {"val_tokens": result["tokens"]}

    def measure_end(self, model: Any) -> dict[str, Any]:
        """What is measured at the end of a run: the whole text, or the part where that is too long."""
        whole = validation_batches(self.tokens.validation, self.rows, self.context, objective=self.objective)
        return self.measure_batches(model, whole if self.whole else self.part)

    def measure(self, model: Any, last: bool) -> dict[str, Any]:
        """The losses of an evaluation, on the sample. After the last step those on more text take their place, and the
        loss on the sample is val_loss_part."""
        result = self.measure_batches(model, self.sample)
        del result["val_tokens"]
        if last and (self.whole or self.sample is not self.part):
            return {**self.measure_end(model), "val_loss_part": result["val_loss"]}
        return result
