"""The preset `modern` is nanochat's model: logits, loss and the gradient of every parameter, with the same weights.

Its code was run once in fp64 (recorded.json, "models"); of each gradient stand there its product with a wave and its
norm. It turns queries and keys the other way round, which is the same with the rows of the second half of every head
negated, and its table of rotations was made in fp64, as is ours here. Value embeddings, their gates, both kinds of
scale, backout and the soft cap are part of the comparison; what it mixes in of the previous token is off, and its
windows are as long as the text.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from geonorm.models import Decoder, attention, preset
from geonorm.models.init import base_std
from geonorm.schemes import Site, parse

from .test_recorded import wave

CASE = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))["models"][0]
IDS = torch.arange(12).view(2, 6) * 7 % 11
MATRICES = {"c_q": "q", "c_k": "k", "c_v": "v", "c_proj": "o", "ve_gate": "mix.gate"}


def places(theirs: str, model: Decoder) -> list[str]:
    """Our parameters that are theirs, one for each row where theirs has a number for every block."""
    layers = range(model.config.layers)
    if theirs in (scalars := {"resid_lambdas": "scale", "x0_lambdas": "again"}):
        return [f"blocks.{layer}.attn.own.{scalars[theirs]}" for layer in layers]
    whole = {
        "backout_lambda": "exit.own.backout",
        "lm_head.weight": "head.weight",
        "transformer.wte.weight": "embed.weight",
    }
    if theirs in whole:
        return [whole[theirs]]
    if theirs.startswith("value_embeds"):
        return [theirs.replace("value_embeds", "values")]
    _, _, layer, kind, name, _ = theirs.split(".")
    if kind == "mlp":
        return [f"blocks.{layer}.mlp.branch.{'up' if name == 'c_fc' else 'down'}.weight"]
    ours = MATRICES[name]
    return [f"blocks.{layer}.attn.branch.{ours}" + ("" if name == "ve_gate" else ".weight")]


def turned(theirs: str, weight: Tensor, model: Decoder) -> Tensor:
    """With the rows of the second half of every head negated, where theirs is of queries or keys."""
    if theirs.split(".")[-2] not in ("c_q", "c_k"):
        return weight
    sign = torch.ones(model.config.head_dim, dtype=weight.dtype)
    sign[model.config.head_dim // 2 :] = -1
    return (weight.unflatten(0, (-1, model.config.head_dim)) * sign.view(1, -1, 1)).flatten(0, 1)


@pytest.fixture(autouse=True)
def wide_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """RoPE's table in fp64: the fp32 of PyTorch rounds by place in memory."""

    def rope(positions: Tensor, dim: int, theta: float, **_: Any) -> tuple[Tensor, Tensor]:
        angles = positions.double().unsqueeze(-1) / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(attention, "rope", rope)


def same_weights() -> Decoder:
    """Ours with their weights: initial value (scales alone have one) plus 0.3 wave, a phase each in the order of their
    names, in which the two of the previous token have places, too."""
    model = Decoder(preset("modern", eps=torch.finfo(torch.float64).eps, **CASE["config"])).double()
    own = dict(model.named_parameters())
    names = sorted([*CASE["gradients"], "smear_gate.weight", "smear_lambda"])
    with torch.no_grad():
        for n, theirs in enumerate(names, start=1):
            if theirs.startswith("smear"):
                continue
            found = [own.pop(name) for name in places(theirs, model)]
            rows = len(found) > 1 or theirs == "backout_lambda"
            shape = (len(found),) if rows else found[0].shape
            values = 0.3 * wave(*shape, phase=float(n))
            if rows:
                for parameter, value in zip(found, values, strict=True):
                    parameter.add_(value)
            else:
                found[0].copy_(turned(theirs, values, model))
    assert not own, f"nothing of theirs is {sorted(own)}"
    return model


def test_modern_is_nanochat(agree: Callable[..., None]) -> None:
    model = same_weights()
    logits = model(IDS)
    agree(logits[0, -1], torch.tensor(CASE["logits"], dtype=torch.float64), "logits", limit=CASE["limit"])
    loss = F.cross_entropy(logits.flatten(0, 1), IDS.roll(-1, 1).flatten())
    agree(loss, torch.tensor(CASE["loss"], dtype=torch.float64), "loss", limit=CASE["limit"])
    loss.backward()
    own = dict(model.named_parameters())
    for theirs, (product, length) in CASE["gradients"].items():
        grads = [own[name].grad for name in places(theirs, model)]
        grad = (
            torch.cat(grads) if len(grads) > 1 else turned(theirs, grads[0], model) if grads[0].dim() > 1 else grads[0]
        )
        found = torch.stack(((grad * wave(*grad.shape, phase=5.0)).sum(), grad.norm()))
        agree(found, torch.tensor([product, length], dtype=torch.float64), f"gradient of {theirs}", limit=CASE["limit"])


def test_it_starts_as_nanochat_does() -> None:
    """As its code drew them at width 256, within 1 %, the noise of the draw; of the scales test_history knows."""
    config = preset("modern", layers=2, width=256)
    for role, drawn in CASE["std"].items():
        fan_in = 1024 if role == "down" else 256
        found = base_std(role, fan_in, config, parse(config.scheme), Site(0, "attn", 2))
        assert found == pytest.approx(drawn, rel=0.01), role
    gate = Decoder(preset("modern")).get_parameter("blocks.3.attn.branch.mix.gate")
    assert gate.eq(0.01).all()
