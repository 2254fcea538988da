"""Loss on held-out text."""

from collections.abc import Iterable, Iterator
from itertools import islice
from math import log
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.decoder import IGNORED, Decoder
from ...modes import evaluating
from ..distributed.ranks import ALONE, World


@torch.no_grad()
def evaluate_held_out(
    model: Any,
    batches: Iterable[tuple[Tensor, Tensor]],
    token_bytes: NDArray[Any],
    device: torch.device,
    world: World = ALONE,
    accuracy: bool = False,
) -> dict[str, float]:
    """val_loss in nats per predicted token, val_bpb in bits per byte of UTF-8 of those tokens (comparable between
    tokenizers where all tokens are predicted; absent where tokens have no text), and counts of both; with `accuracy`
    also val_accuracy, the share of predicted tokens that the model finds likeliest.

    model: a Decoder, or anything with its `loss`, `forward`, `eval` and `train`. token_bytes: bytes of each token
    (vocabulary,); special tokens count 0. The batches are dealt out to the ranks. Every rank gets the same result,
    which equals that of one rank but for the order in which batches are summed in fp64.
    """
    nats = torch.zeros((), dtype=torch.float64, device=device)
    hits = nats.clone()
    tokens, size = 0, 0.0
    with evaluating(model):
        for ids, targets, counts in share_batches(batches, world):
            inputs = ids.to(device), targets.to(device)
            if accuracy:
                logits, expected = model(inputs[0]).flatten(0, 1), inputs[1].flatten()
                loss = Decoder.cross_entropy(logits, expected, "none").double().sum()
                hits += counts * (logits.argmax(-1) == expected).sum()
            else:
                loss = model.loss(*inputs, reduction="sum")
            if counts:
                nats += loss
                predicted = targets[targets != IGNORED].numpy()
                tokens += len(predicted)
                size += float(token_bytes[predicted].sum())
    total, count, length, correct = world.total([nats.item(), tokens, size, hits.item()])
    tokens, size = int(count), int(length)
    result = {"val_loss": total / tokens, "tokens": tokens, "bytes": size}
    if size:
        result["val_bpb"] = total / log(2) / size
    return result | ({"val_accuracy": correct / tokens} if accuracy else {})


def share_batches(batches: Iterable[tuple[Tensor, Tensor]], world: World) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """This rank's batches, each with whether it counts. Where other ranks have one batch more, this rank gets one that
    does not count: all ranks of a sharded model must make the same number of forward passes."""
    waiting = iter(batches)
    while group := list(islice(waiting, world.size)):
        yield *group[min(world.rank, len(group) - 1)], world.rank < len(group)
