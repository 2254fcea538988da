"""Scales on the skip path: the algorithm of nanochat as a stack, its fields, and the two passes of GPAS."""

from __future__ import annotations

import pytest
import torch

from geonorm import Decoder, DecoderConfig, parse
from geonorm.errors import ConfigError

from .test_streams import SITES, embedding, network, own, weights
from .textbook import same


def test_neutral_scales_without_backout_are_pre_norm() -> None:
    same(network("lambdas(start=neutral, backout=none)", moved=0.0), network("pre", moved=0.0))
    assert not torch.allclose(network("lambdas(backout=none)", moved=0.0), network("pre", moved=0.0))


@pytest.mark.parametrize("block", ["sequential", "parallel"])
def test_a_model_with_one_residual_a_block_scales_once_a_block(block: str) -> None:
    model = Decoder(DecoderConfig("lambdas", layers=3, width=8, heads=2, hidden=8, block=block))
    named = dict(model.named_parameters())
    scale, again = (
        [p.item() for name, p in named.items() if name.endswith(f"own.{each}")] for each in ("scale", "again")
    )
    assert scale == pytest.approx([1.15, 1.1, 1.05]) and again == pytest.approx([0.2, 0.125, 0.05])
    assert named["exit.own.backout"].item() == pytest.approx(0.2)


def test_schemes_of_two_and_three_streams_do_not_follow_one_another() -> None:
    assert parse("mix(lambdas, lambdas(start=neutral))").streams == 3
    with pytest.raises(ConfigError, match="cannot combine"):
        parse("mix(lambdas, lambdas(backout=none))")


def test_gpas_scales_values_and_not_gradients() -> None:
    scheme, site = parse("gpas"), SITES[2]
    p = own(scheme, site)
    x = embedding().requires_grad_()
    u = embedding().flip(0).requires_grad_()
    gate = weights(p)["gate"]
    out = scheme.write(x, u, p(), site)
    same(out, (x + u) * (1 - gate * torch.sigmoid(gate)))
    g = embedding().roll(1, -1)
    along_x, along_u = torch.autograd.grad((out * g).sum(), (x, u))
    assert torch.equal(along_x, g) and torch.equal(along_u, g) and abs(gate.item()) > 1e-3
