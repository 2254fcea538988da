"""Held-out text of a run: a part of it, spread over all of it, while the run trains; the whole at its end."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.decoder import IGNORED
from ...modes import evaluating
from ..config import Evaluation
from ..data import TokenData
from ..data.batches import NEXT, Objective, validation_batches
from ..distributed.ranks import ALONE, World
from .evaluate import evaluate_held_out, share_batches, token_losses

EVALUATION_BATCH = 4096
"""Tokens of a forward pass in evaluations."""
MEASURES = ("val_loss", "val_bpb", "val_accuracy")
MANY = 256
"""Documents beyond which a summary does not list them."""


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
        objective: Objective = NEXT,
    ) -> None:
        """seen: tokens that the run trains on."""
        self.tokens, self.context, self.device, self.world = tokens, context, device, world
        self.objective, self.accuracy = objective, objective.accuracy
        self.rows = max(1, EVALUATION_BATCH // context)
        self.trace_tokens = evaluation.trace_tokens
        self.whole = 3 * len(tokens.validation) <= seen if evaluation.whole is None else evaluation.whole
        """True if all of it is measured at the end."""
        self.part = list(validation_batches(tokens.validation, self.rows, context, evaluation.tokens, objective))
        """Batches spread over all of it."""

    def trace_ids(self) -> Tensor:
        """Whole rows of the part, spread over it, at least one."""
        ids = torch.cat([ids for ids, _ in self.part])
        count = min(len(ids), max(1, self.trace_tokens // self.context))
        return ids[torch.arange(count) * len(ids) // count].to(self.device)

    def on_part(self, model: Any) -> dict[str, Any]:
        """val_loss, val_bpb and, of masked tokens, val_accuracy on the spread part."""
        result = evaluate_held_out(model, self.part, self.tokens.token_bytes, self.device, self.world, self.accuracy)
        return {key: result[key] for key in MEASURES if key in result}

    @torch.no_grad()
    def on_all(self, model: Any) -> dict[str, Any]:
        """The same on the whole text, val_tokens (those predicted) and val_documents (tokens and loss of each). A token
        belongs to the document it stands in, the mark at its end included."""
        text, sizes = self.tokens.validation, torch.from_numpy(self.tokens.token_bytes)
        owners = number_documents(text, int(self.tokens.meta["eos"]))
        sums = torch.zeros(4, int(owners[-1]) + 1, dtype=torch.float64)  # nats, tokens, bytes, hits
        windows = validation_batches(text, self.rows, self.context, objective=self.objective)
        places = validation_batches(owners, self.rows, self.context)  # of inputs, and of what follows them
        with evaluating(model):
            for (ids, targets), owner, counts in share_batches(zip(windows, places, strict=True), self.world):
                inputs = ids.to(self.device), targets.to(self.device)
                if self.accuracy:
                    losses, hits = (each.double().cpu() for each in token_losses(model, *inputs))
                else:
                    losses = model.loss(*inputs, reduction="none").double().cpu()
                    hits = torch.zeros_like(losses)
                if counts:
                    predicted = (targets != IGNORED).flatten()
                    length = sizes[targets.flatten().clamp(min=0)] * predicted
                    measures = torch.stack((losses, predicted.double(), length.double(), hits))
                    sums.index_add_(1, owner[self.objective.ahead].flatten(), measures)
        sums = torch.tensor(self.world.total(sums.flatten().tolist()), dtype=torch.float64).view(4, -1)
        nats, tokens, size, right = (total.item() for total in sums.sum(1))
        result: dict[str, Any] = {"val_loss": nats / tokens, "val_bpb": nats / log(2) / max(1, size)}
        result |= {"val_accuracy": right / tokens} if self.accuracy else {}
        result["val_tokens"] = int(tokens)
        rows = [
            {"document": number, "tokens": int(count), "loss": total / count}
            for number, (total, count, *_) in enumerate(sums.T.tolist())
            if count
        ]
        return result | ({"val_documents": rows} if len(rows) <= MANY else {})

    def measure_end(self, model: Any) -> dict[str, Any]:
        """What is measured at the end of a run: `on_all`, or `on_part` where the whole text is too long."""
        return self.on_all(model) if self.whole else self.on_part(model)

    def measure(self, model: Any, last: bool) -> dict[str, Any]:
        """The losses of an evaluation. After the last step those on the whole text take the place of those on the part,
        whose loss is then val_loss_part."""
        result = self.on_part(model)
        if last and self.whole:
            return {**self.on_all(model), "val_loss_part": result["val_loss"]}
        return result


def number_documents(tokens: Any, eos: int) -> NDArray[np.int64]:
    """The number of the document that each token stands in; its end mark is its last token."""
    ends = np.asarray(tokens) == eos
    return np.cumsum(ends) - ends
