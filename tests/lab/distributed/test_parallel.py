"""What puts a model where it runs, on one rank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from geonorm import Decoder, DecoderConfig
from geonorm.lab.config import Runtime
from geonorm.lab.distributed import parallel
from geonorm.lab.distributed.ranks import ALONE

SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
def test_blocks_are_compiled_also_where_they_are_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler passes over what it does not see through, without a word: the frames that it made tell. How code is
    made of them does not matter here, and inductor would take a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    frames, ids = [], torch.arange(8)[None]
    torch.manual_seed(0)
    plain = Decoder(DecoderConfig("geonorm", **SHAPE))
    wanted = plain.loss(ids, ids)
    wanted.backward()
    for recompute in (False, True):
        torch._dynamo.reset()
        counters.clear()
        model = Decoder(DecoderConfig("geonorm", **SHAPE))
        model.load_state_dict(plain.state_dict())
        parallel.distribute(model, Runtime(compile=True, recompute=recompute), torch.device("cpu"))
        loss = model.loss(ids, ids)
        loss.backward()
        torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        frames.append(counters["frames"]["ok"])
    assert frames[0] == frames[1] > 1 and not counters["graph_break"]


def test_no_rank_draws_what_another_run_does() -> None:
    seeds = [parallel.rank_seed(seed, replace(ALONE, rank=rank, size=4)) for seed in range(4) for rank in range(4)]
    assert len(set(seeds)) == 16 and seeds[::4] == [0, 1, 2, 3]
