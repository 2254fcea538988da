"""The logit lens: what a model would predict if it ended after each of its blocks.

Later blocks are passed by, so that the stream goes on to the model's own end: its last norm, head, soft cap and all
else that stands there. In evaluation mode; one window of text at a time, whose logits are all that is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .subject import Inputs, Subject, check_predicted, without


@torch.no_grad()
def logit_lens(
    subject: Subject, batches: Sequence[Tensor | Inputs], told: Callable[[float], None] | None = None
) -> list[dict[str, Any]]:
    """A row for 0, 1, ... all blocks of the stream that ends in the head, over the tokens of all batches.

    blocks: how many of them ran; loss: cross-entropy in nats; divergence: KL of the whole model's prediction from this
    one, in nats; agreement: share of tokens with the same first choice as the whole model's.
    """
    stack, blocks = subject.blocks()[-1]
    totals = torch.zeros(len(blocks) + 1, 3, dtype=torch.float64)
    count = 0
    for done, batch in enumerate(batches):
        logits, targets = subject.predictions(batch)
        whole = F.log_softmax(logits, -1)
        count += targets.numel()
        for ran in range(len(blocks) + 1):
            with without(blocks[ran:]):
                found = F.log_softmax(subject.predictions(batch)[0], -1)
            totals[ran, 0] += F.nll_loss(found, targets, reduction="sum").double().cpu()
            totals[ran, 1] += (whole.exp() * (whole - found)).sum(dtype=torch.float64).cpu()
            totals[ran, 2] += (found.argmax(-1) == whole.argmax(-1)).sum().double().cpu()
        if told is not None:
            told((done + 1) / len(batches))
    check_predicted(count)
    names = ("loss", "divergence", "agreement")
    return [
        {"stack": stack, "blocks": ran, **dict(zip(names, row, strict=True))}
        for ran, row in enumerate((totals / count).tolist())
    ]


def single_windows(batches: Iterable[Tensor | Inputs]) -> list[Tensor | Inputs]:
    """Ids a window at a time; whatever else a model takes as it came."""
    return [part for batch in batches for part in (batch.split(1) if isinstance(batch, Tensor) else [batch])]
