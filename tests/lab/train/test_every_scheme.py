"""Training works with every scheme: steps, precision, compilation. Saving and resuming: tests/stateful.

Rows are every name and some variants that take other paths through the code; those with streams, slots or weights of
their own in parallel blocks too.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig, names
from geonorm.lab.config import Runtime
from geonorm.lab.distributed import parallel
from geonorm.schemes import advance

from ...rows import each
from ..conftest import same

VARIANTS = [
    "pre(entry=embedding)",
    "post(decay=sqrt, final=norm)",
    "geonorm(learn=affine)",
    "geonorm(input=norm, update=norm, index=sublayer)",
    "geonorm(decay_on=update, retraction=cayley, learn=step)",
    "first(hybrid(input=norm), hybrid)",
    "per_kind(geonorm, peri)",
    "mix(ngpt, geonorm, share=0.5)",
    "siamese(sum=norm, decay=sqrt, alpha=0.7071067811865476)",
    "hyper(n=2, dynamic=none)",
]
SCHEMES = [*names(), *VARIANTS]
PARALLEL = "geonorm deepnorm hybrid ngpt residual_dual siamese hyper mhc attnres lambdas nag".split()
LAYOUTS = [*((scheme, "sequential") for scheme in SCHEMES), *((scheme, "parallel") for scheme in PARALLEL)]
SHAPE: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "vocab_size": 257, "context": 16}
CPU = torch.device("cpu")


def decoder(scheme: str, block: str = "sequential") -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(scheme, block=block, **SHAPE))


def ids(seed: int = 0) -> torch.Tensor:
    return torch.randint(257, (2, 12), generator=torch.Generator().manual_seed(seed))


@each("scheme, block", LAYOUTS)
def test_three_steps(scheme: str, block: str) -> None:
    """Losses stay finite and every parameter moves: those that multiply a 0 at the start do so by the third step."""
    model = decoder(scheme, block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model.loss(ids(), ids(1))
        loss.backward()
        assert 2 < loss.item() < 9  # about log 257 = 5.5
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        model.constrain()
        advance(model)
    assert not [name for name, p in model.named_parameters() if not p.grad.any()]


@each("scheme", SCHEMES)
def test_a_step_in_bf16_is_the_step_in_fp32(scheme: str) -> None:
    """Losses within 1 %, and the direction of the whole gradient within 0.1 rad: bf16 keeps 8 bits."""

    def step(dtype: torch.dtype | None) -> tuple[float, torch.Tensor]:
        model = decoder(scheme)
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model.loss(ids(), ids(1))
        loss.backward()
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())
        return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])

    (exact, gradient), (rounded, turned) = step(None), step(torch.bfloat16)
    assert exact != rounded and rounded == pytest.approx(exact, rel=0.01)
    assert torch.cosine_similarity(gradient, turned, dim=0) > math.cos(0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch silences its compiler's warnings itself
def test_a_compiled_run_resumed_is_uninterrupted(
    train: Any, after: Any, losses: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Bit for bit; other runs: tests/stateful."""
    monkeypatch.setattr(parallel, "FEWEST_STEPS", 0)  # whole
    whole, again = tmp_path / "whole", tmp_path / "again"
    options = ["--scheme", "geonorm(learn=affine)", "--steps", 4, "--runtime.compile"]
    with after(2):
        assert train(again, *options).status == 130
    assert train(again, *options).status == train(whole, *options).status == 0
    assert same(whole, again, 4) and losses(whole) == losses(again)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "whole"), [("geonorm(learn=affine)", False), ("hyper", False), ("ngpt", True)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_equals_eager(scheme: str, whole: bool) -> None:
    plain, compiled = decoder(scheme), decoder(scheme)
    for block in compiled.blocks if not whole else ():
        block.compile()
    eager = plain.loss(ids(), ids(1))
    fast = parallel.trained_loss(compiled, Runtime(compile=whole), CPU, parallel.FEWEST_STEPS)(ids(), ids(1))
    eager.backward()
    fast.backward()
    torch.testing.assert_close(fast, eager, rtol=1e-5, atol=1e-5)
    for (name, p), q in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
