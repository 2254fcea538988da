"""Loss on held-out text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import exp, log
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..runs.run import finite_or_none
from ..scale.world import ALONE, World

A = TypeVar("A")
B = TypeVar("B")


@torch.no_grad()
def evaluate_held_out(
    model: Any,
    batches: Iterable[tuple[Tensor, Tensor]],
    token_bytes: NDArray[np.int64],
    device: torch.device,
    world: World = ALONE,
) -> dict[str, float]:
    """val_loss in nats per token, val_bpb in bits per byte of UTF-8 (comparable between tokenizers), and counts.

    model: a Decoder, or what has its `loss`, `eval` and `train`. token_bytes: bytes of each token (vocabulary,);
    special tokens count 0. Ranks take turns at the batches; every rank gets the same result, that of one rank but for
    the order in which batches are added up in fp64.
    """
    was_training = model.training
    model.eval()
    nats = torch.zeros((), dtype=torch.float64, device=device)
    tokens = size = 0
    for ids, targets, counts in share_batches(batches, world):
        loss = model.loss(ids.to(device), targets.to(device), reduction="sum").double()
        if counts:
            nats += loss
            tokens += targets.numel()
            size += int(token_bytes[targets.numpy()].sum())
    model.train(was_training)
    total, count, length = world.total([nats.item(), tokens, size])
    tokens, size = int(count), int(length)
    return {"val_loss": total / tokens, "val_bpb": total / log(2) / max(1, size), "tokens": tokens, "bytes": size}


def share_batches(batches: Iterable[tuple[A, B]], world: World) -> Iterator[tuple[A, B, bool]]:
    """This rank's batches, the last one repeated without counting where others have one more: all ranks of a sharded
    model must make the same number of forward passes."""
    waiting = iter(batches)
    while group := list(islice(waiting, world.readers)):
        yield *group[min(world.reader, len(group) - 1)], world.reader < len(group) and world.counts


def with_perplexity(result: dict[str, float]) -> dict[str, Any]:
    """What `geonorm eval` reports."""
    loss = result["val_loss"]
    return {
        "loss": finite_or_none(loss),
        "perplexity": exp(loss) if loss < 700 else None,
        "bits_per_byte": finite_or_none(result["val_bpb"]),
        "tokens": result["tokens"],
        "bytes": result["bytes"],
    }
