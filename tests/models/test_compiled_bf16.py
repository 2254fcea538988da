"""Compiled code in bf16 says what eager code says, in deep stacks too: errors of compiled norms that grow from norm to
norm are on record elsewhere.

deep.json holds the loss of every scheme's narrow model of 24 blocks in fp64, which rests on no CPU's make; `python
tests/models/test_compiled_bf16.py` writes it. What bf16 may differ by is not typed in. bf16 keeps 8 bits where fp32
keeps 24, and small errors grow alike, so that a gradient in bf16 may turn from that of fp64 by 2^16 times what fp32's
turns by on the same machine; in fact matrix products alone are in bf16, and less is seen (0.04 to 0.7 of it). The
loss may differ by as much, or by the rounding of the stream's 2 L + 1 terms, 2^-8 sqrt(2 L + 1), where that is more.
Where the turn that is allowed passes one radian, bf16 says nothing of a gradient, compiled or not: `olmo2`, `siamese`
and `per_kind` with these draws at 24 blocks, which therefore have 4, `siamese` 2.
"""

from __future__ import annotations

import json
from math import atan2, sqrt
from pathlib import Path

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig, names
from geonorm.models import preset

FILE = Path(__file__).with_name("deep.json")
DEPTH, LESS = 24, {"olmo2": 4, "siamese": 2, "per_kind": 4}
COARSER = 2.0**16
"""Unit roundoff of bf16 over that of fp32."""
NORMS = ("derf", "gated")
"""Inside `pre`."""
CASES = [
    *names(),
    "geonorm(update=unit)",
    "mhc(mix=permutation, n=3)",
    "mhc(mix=identity)",
    "prores(geonorm)",
    "modern",
    *NORMS,
]
IDS = torch.arange(32).view(2, 16) * 7 % 61


def depth_of(case: str) -> int:
    return LESS.get(case, DEPTH)


def build(case: str) -> Decoder:
    """A narrow model with weights drawn in fp32; what starts at 0 is drawn small, so that blocks do something."""
    torch.manual_seed(0)
    shape = {"layers": depth_of(case), "width": 32, "heads": 2, "hidden": 48, "vocab_size": 61, "context": 16}
    named = {"scheme": "pre", "norm": case} if case in NORMS else {"scheme": case}
    model = Decoder(preset("modern", **shape) if case == "modern" else DecoderConfig(**named, **shape))
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


def allowed(case: str, found: Tensor, exact: Tensor) -> tuple[float, float]:
    """How far a loss and a gradient in bf16 may be from fp64's, by fp32's gradient."""
    turned = COARSER * turn(found, exact)
    return max(turned, 2.0**-8 * sqrt(2 * depth_of(case) + 1)), turned


def recorded() -> dict[str, float]:
    values: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8"))
    return values


def test_every_scheme_is_on_record() -> None:
    assert list(recorded()) == CASES


def check(case: str, compiled: bool) -> None:
    """Loss and gradient in bf16 are as near those of fp64 as bf16 allows, and that loss is the recorded one."""
    exact_loss, exact = step(build(case).double())
    assert exact_loss == pytest.approx(recorded()[case], rel=1e-9)
    model = build(case)
    loss, turned = allowed(case, step(model)[1], exact)
    assert turned < 1, "bf16 says nothing here: fewer blocks"
    if compiled:
        torch.compiler.reset()
        for block in model.blocks:
            block.compile()
    found, gradient = step(model, half=True)
    assert abs(found - exact_loss) <= loss, (found, exact_loss, loss)
    assert turn(gradient, exact) <= turned, (turn(gradient, exact), turned)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_eager_is_as_near_as_bf16_allows(case: str) -> None:
    check(case, compiled=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_compiled_is_as_near_as_bf16_allows(case: str) -> None:
    """One graph for all blocks."""
    check(case, compiled=True)


@pytest.mark.parametrize(("case", "wrong"), [("pre", "pre(alpha=1.1)"), ("geonorm", "geonorm(alpha=1.1)")])
def test_a_wrong_step_would_be_told_apart(case: str, wrong: str) -> None:
    exact = step(build(case).double())[1]
    _, turned = allowed(case, step(build(case))[1], exact)
    assert turn(step(build(wrong), half=True)[1], exact) > turned


def write() -> None:
    rows = ",\n".join(f" {json.dumps(case)}: {step(build(case).double())[0]!r}" for case in CASES)
    FILE.write_text("{\n" + rows + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
