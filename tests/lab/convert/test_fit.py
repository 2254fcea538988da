"""Gains fitted on one batch, so that a model of another scheme is as near to the original as gains can make it."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from geonorm.nn import Decoder, DecoderConfig

pytest.importorskip("transformers")
from geonorm.lab.convert.fit import divide_state, fit


def test_fitted_it_begins_nearer_than_abruptly() -> None:
    shape: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 31, "context": 12}
    ids = torch.arange(48).view(4, 12) % 31
    for target, least in (("geonorm(entry=embedding)", 0.7), ("deepnorm", 0.5), ("pre(input=raw)", 0.7)):
        torch.manual_seed(0)
        original = Decoder(DecoderConfig("pre(entry=embedding)", norm="layer", bias=True, **shape))
        with torch.no_grad():
            for p in original.parameters():
                p.add_(0.1 * torch.randn_like(p))
        model = Decoder(DecoderConfig(target, norm="layer", bias=True, **shape))
        own = original.state_dict()
        model.load_state_dict({name: own.get(name, value) for name, value in model.state_dict().items()})
        names = model.state_dict().keys()
        with torch.no_grad():
            wanted, before = original(ids), model(ids)
            factors = fit(model, original, ids)
            far = (model(ids) - wanted).norm() / (before - wanted).norm()
        assert far < least, (target, far)
        assert model.state_dict().keys() == names and len(factors) >= 2 * 7


def test_it_is_fitted_without_dropout() -> None:
    shape: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 31, "context": 12}
    ids, found = torch.arange(48).view(4, 12) % 31, []
    for dropout in (0.0, 0.5):
        torch.manual_seed(0)
        original, model = (Decoder(DecoderConfig(scheme, attn_dropout=dropout, **shape)) for scheme in ("pre", "post"))
        fit(model, original.eval(), ids)
        found.append([p.detach() for p in model.parameters()])
        assert model.training
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("target", ["post", "geonorm(final=none, after=norm)"])
@torch.no_grad()
def test_without_a_norm_at_the_exit_the_last_one_on_the_stream_gives_its_length(target: str) -> None:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 31, "context": 12}
    original, model = (Decoder(DecoderConfig(scheme, **shape)) for scheme in ("pre", target))
    cast(Any, original.exit.own).norm.weight.fill_(3.0)
    own, ids = original.state_dict(), torch.arange(48).view(4, 12) % 31
    model.load_state_dict({name: own.get(name, value) for name, value in model.state_dict().items()})
    fit(model, original, ids)
    assert model(ids).norm() / original(ids).norm() == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("target", ["peri(entry=embedding)", "geonorm(update=norm)"])
def test_norms_without_gains_are_left_as_they_are(target: str) -> None:
    """A norm on what a branch proposes has nothing that could be fitted there."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 31, "context": 12}
    original, model = (Decoder(DecoderConfig(scheme, gains=False, **shape)) for scheme in ("pre", target))
    own, ids = original.state_dict(), torch.arange(48).view(4, 12) % 31
    model.load_state_dict({name: own.get(name, value) for name, value in model.state_dict().items()})
    fit(model, original, ids)
    with torch.no_grad():
        assert model(ids).isfinite().all()


@pytest.mark.parametrize("target", ["peri(entry=embedding)", "post"])
@torch.no_grad()
def test_without_norms_it_is_fitted_as_where_a_scheme_has_none(target: str) -> None:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 31, "context": 12}
    original, model = (Decoder(DecoderConfig(scheme, norm="none", **shape)) for scheme in ("pre", target))
    model.load_state_dict(original.state_dict())
    for p in model.parameters():
        p.mul_(1.5)
    ids = torch.arange(48).view(4, 12) % 31
    before = (model(ids) - original(ids)).norm()
    fit(model, original, ids)
    assert (model(ids) - original(ids)).norm() < before


@pytest.mark.parametrize("bias", [False, True])
def test_folded_it_is_the_model_that_was_fitted(bias: bool) -> None:
    """With gates of token values, which read what the matrices behind them read."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": 3, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 31, "context": 12}
    shape |= {"values": "token", "norm": "layer", "bias": bias}
    original, model = (Decoder(DecoderConfig(scheme, **shape)) for scheme in ("pre", "geonorm"))
    with torch.no_grad():
        for p in original.parameters():
            p.add_(0.3 * torch.randn_like(p))
    own, ids, fitted = original.state_dict(), torch.arange(48).view(4, 12) % 31, []
    model.load_state_dict({name: own.get(name, value) for name, value in model.state_dict().items()})
    hook = model.register_forward_hook(lambda *call: fitted.append(call[-1]))
    factors = fit(model, original, ids)
    hook.remove()
    assert sum(weight.shape == (2, 12) for weight, _ in factors) == 2
    torch.testing.assert_close(model(ids), fitted[0], rtol=1e-4, atol=1e-4)


def test_what_an_optimizer_remembers_follows_the_weights() -> None:
    """One step of Adam from a gradient, then the weight times f: its memory is that of the gradient over f."""
    memories = []
    for factor in (1.0, 4.0):
        weight = torch.nn.Parameter(torch.ones(2, 3))
        optimizer = torch.optim.AdamW([weight], lr=1e-2)
        weight.grad = torch.arange(6.0).view(2, 3) / (1.0 if factor == 1.0 else 4.0)
        optimizer.step()
        if factor == 1.0:
            divide_state([optimizer], [(weight, torch.full((3,), 4.0))])
        memories.append(optimizer.state[weight])
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(memories[0][name], memories[1][name])
