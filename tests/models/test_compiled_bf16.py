"""Compiled code in bf16 says what eager code in fp64 says, in deep stacks too: errors of compiled norms that grow from
norm to norm are on record elsewhere.

What bf16 may differ by is not typed in. bf16 keeps 8 bits where fp32 keeps 24, and small errors grow alike, so that a
gradient in bf16 may turn from that of fp64 by 2^16 times what fp32's turns by on the same machine; in fact matrix
products alone are in bf16, and less is seen (0.04 to 0.7 of it). The loss may differ by as much, or by the rounding of
the stream's 2 L + 1 terms, 2^-8 sqrt(2 L + 1), where that is more. Where the turn that is allowed passes one radian,
bf16 says nothing of a gradient, compiled or not: `olmo2`, `siamese`, `per_kind` and `muse` with these draws at 24
blocks, which therefore have 4, `siamese` 2, `muse` 12.
"""

from math import atan2, sqrt

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig, names
from geonorm.models import preset

DEPTH, LESS = 24, {"olmo2": 4, "siamese": 2, "per_kind": 4, "muse": 12}
COARSER = 2.0**16
"""Unit roundoff of bf16 over that of fp32."""
NORMS = ("derf", "gated")
"""Inside `pre`."""
OTHERS = ["geonorm(update=unit)", "mhc(mix=permutation, n=3)", "mhc(mix=identity)", "prores(geonorm)", "modern"]
IDS = torch.arange(32).view(2, 16) * 7 % 61


def build(case: str) -> Decoder:
    """A narrow model with weights drawn in fp32; what starts at 0 is drawn small, so that blocks do something."""
    torch.manual_seed(0)
    shape = {"layers": LESS.get(case, DEPTH), "width": 32, "heads": 2, "hidden": 48, "vocab_size": 61, "context": 16}
    fields = {"scheme": "pre", "norm": case} if case in NORMS else {"scheme": case}
    model = Decoder(preset("modern", **shape) if case == "modern" else DecoderConfig(**fields, **shape))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2 and not p.any():
                p.normal_(0.0, 0.02)
    return model


def step(model: Decoder, half: bool = False) -> tuple[float, Tensor]:
    """Loss, and the gradient of all weights in fp64."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = model.loss(IDS, IDS.roll(-1, 1))
    loss.backward()
    grads = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
    return loss.item(), torch.cat(grads)


def turn(a: Tensor, b: Tensor) -> float:
    """The angle between two vectors, exact for small ones too."""
    a, b = a / a.norm(), b / b.norm()
    return 2 * atan2((a - b).norm().item(), (a + b).norm().item())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", [*names(), *OTHERS, *NORMS])
def test_loss_and_gradient_are_as_near_those_of_fp64_as_bf16_allows(case: str, compiled: bool) -> None:
    """One graph for all blocks."""
    exact_loss, exact = step(build(case).double())
    model = build(case)
    turned = COARSER * turn(step(model)[1], exact)
    assert turned < 1, "bf16 says nothing here: fewer blocks"
    if compiled:
        torch.compiler.reset()
        for block in model.blocks:
            block.compile()
    loss, gradient = step(model, half=True)
    assert abs(loss - exact_loss) <= max(turned, 2.0**-8 * sqrt(2 * len(model.blocks) + 1))
    assert turn(gradient, exact) <= turned
