"""`polar`: Pre-Norm with direction and log-radius apart is the same function, forward and backward."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig, Site, parse
from geonorm.norms import NormSpec
from geonorm.schemes import Parts, polar, read_at

from ..rows import each

SMALL: dict[str, Any] = {"layers": 3, "width": 24, "heads": 2, "hidden": 40, "vocab_size": 37, "context": 16}


def pair(fields: str = "", **changes: Any) -> tuple[Decoder, Decoder]:
    """`pre` and `polar` with the same weights, fp64, gains and biases off their initial values."""
    models = []
    for name in ("pre", "polar"):
        torch.manual_seed(5)
        model = Decoder(DecoderConfig(f"{name}({fields})", **(SMALL | changes))).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        models.append(model)
    return models[0], models[1]


def text(seed: int = 0) -> Tensor:
    return torch.randint(37, (2, 13), generator=torch.Generator().manual_seed(seed))


@each("eps", [1e-6, 0.1])
@each("norm", ["rms", "layer", "dyt", "none"])
@each("fields", ["", "entry=embedding", "decay=sqrt, alpha=3", "final=none"])
def test_logits_and_all_gradients_equal_those_of_pre(fields: str, norm: str, eps: float) -> None:
    plain, scaled = pair(fields, norm=norm, eps=eps)
    found, expected = scaled(text()), plain(text())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for model in (plain, scaled):
        model.loss(text(), text(1)).backward()
    others = dict(scaled.named_parameters())
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0
        torch.testing.assert_close(others.pop(name).grad, parameter.grad, rtol=1e-11, atol=1e-13, msg=name)
    assert not others


def states(model: Decoder) -> list[Tensor]:
    """The stream after entry and every block, as sub-layers would see it."""
    found: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda *args: found.append(args[2])) for module in (model.entry, *model.blocks)
    ]
    model(text())
    for handle in handles:
        handle.remove()
    return found


def test_what_is_seen_is_the_stream_of_pre_while_the_state_stays_on_the_sphere() -> None:
    plain, scaled = pair("alpha=20")
    grown = states(plain)
    assert grown[-1].norm(dim=-1).mean() > 10 * grown[0].norm(dim=-1).mean()
    for state, x in zip(states(scaled), grown, strict=True):
        assert state.shape == (2, 13, 25)
        torch.testing.assert_close(state[..., :-1].square().mean(-1), torch.ones(2, 13, dtype=torch.float64))
        torch.testing.assert_close(scaled.scheme.seen(state), x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state[..., -1], x.square().mean(-1).log() / 2, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_state_keeps_its_dtype_and_stays_near_pre(dtype: torch.dtype) -> None:
    plain, scaled = pair()
    plain, scaled = plain.to(dtype), scaled.to(dtype)
    assert {state.dtype for state in states(scaled)} == {dtype}
    scaled.loss(text(), text(1)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in scaled.parameters())
    torch.testing.assert_close(scaled(text()), plain(text()), rtol=0.1, atol=60 * torch.finfo(dtype).eps)


def test_half_precision_holds_streams_that_pre_cannot() -> None:
    """A stream of rms 2^20 is infinite in fp16; as a direction and a logarithm it is read as it should."""
    site, scaled = Site(0, "attn", 3), parse("polar")
    own = Parts(scaled, site, NormSpec("rms", 8))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    big = torch.cat((x * x.square().mean(-1, keepdim=True).rsqrt(), torch.full((4, 1), 20 * log(2))), -1).half()
    y, _ = read_at(scaled, big, own(), site)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.float(), x * x.square().mean(-1, keepdim=True).rsqrt(), rtol=3e-3, atol=3e-3)
    assert not (2.0**20 * x).half().isfinite().any()


def test_zero_tokens_and_steps_that_cancel() -> None:
    x = torch.zeros(2, 6, dtype=torch.float64, requires_grad=True)
    u = torch.randn(2, 6, dtype=torch.float64)
    state = polar.to_polar(x)
    assert not state.any()
    out = polar.from_polar(polar.add_polar(state, u))
    torch.testing.assert_close(out, u)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))
    one = polar.to_polar(torch.tensor([3.0, 4.0], dtype=torch.float64))
    gone = polar.from_polar(polar.add_polar(one, torch.tensor([-3.0, -4.0], dtype=torch.float64)))
    torch.testing.assert_close(gone, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-15)
