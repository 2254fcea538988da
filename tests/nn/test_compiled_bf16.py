"""Compiled code in bf16 says what eager code says, in deep stacks too: errors of compiled norms that grow from norm to
norm are on record elsewhere."""

from __future__ import annotations

import pytest
import torch

from geonorm import Decoder, DecoderConfig, names

DEPTH = 24
IDS = torch.arange(32).view(2, 16) * 7 % 61


def step(scheme: str, compiled: bool, dtype: torch.dtype | None) -> tuple[float, torch.Tensor]:
    """Loss, and the gradient of all weights, of a decoder with one compiled graph for its blocks."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(scheme, layers=DEPTH, width=32, heads=2, hidden=48, vocab_size=61, context=16))
    if compiled:
        torch.compiler.reset()
        for block in model.blocks:
            block.compile()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = model.loss(IDS, IDS.roll(-1, 1))
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("scheme", [*(name for name in names() if name != "prores"), "geonorm(update=unit)"])
def test_compiled_is_no_further_from_fp32_than_eager(scheme: str) -> None:
    """24 blocks: the compiled loss in bf16 is as near that of fp32 as eager's, and the two gradients point one way."""
    exact, direction = step(scheme, False, None)
    eager, first = step(scheme, False, torch.bfloat16)
    found, second = step(scheme, True, torch.bfloat16)
    assert abs(found - exact) <= 2 * abs(eager - exact) + 2e-3 * exact, (found, eager, exact)
    apart = [1 - torch.cosine_similarity(a, direction, dim=0).item() for a in (first, second)]
    assert apart[1] <= 2 * apart[0] + 1e-3, apart
