"""Calls from Python that ask for what cannot be: each raises one line of a GeonormError, or a TypeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from setting import Call
from torch import nn

from geonorm import Decoder, DecoderConfig, Residual, Site, dynamics, geodesic_update, simulate

SITE = Site(0, "attn", 2)
STREAM, OTHER = torch.randn(2, 8), torch.randn(2, 7)
Asked = Callable[[], object]


def flowing(value: float) -> Asked:
    return lambda: dynamics.Flow("pre", dynamics.Attention()).start(torch.full((3, 4), value))


def residual(**changes: Any) -> Asked:
    return lambda: Residual(**{"branch": nn.Linear(8, 8), "scheme": "geonorm", "site": SITE, "dim": 8, **changes})


def forward(x: torch.Tensor, function: Any) -> Asked:
    """Through a residual whose branch is that function."""

    def call() -> object:
        branch = nn.Identity()
        branch.forward = function
        return Residual(branch, "geonorm", SITE, 8)(x)

    return call


def simulated(**settings: Any) -> Asked:
    return lambda: simulate(
        **{"schemes": ["pre"], "tokens": 4, "dim": 4, "time": 2.0, "points": 8, "seeds": 1, **settings}
    )


def decoder(**settings: Any) -> Asked:
    small = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}
    return lambda: Decoder(DecoderConfig(**{**small, **settings}))


def in_hf(verb: str, model: Callable[[], Any], *rest: Any, **settings: Any) -> Asked:
    def call() -> object:
        from geonorm import hf

        return getattr(hf, verb)(model(), *rest, **settings)

    return call


def bert() -> Any:
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertModel(BertConfig(vocab_size=16, max_position_embeddings=8, **small))


def bert_applied() -> Any:
    from geonorm import hf

    hf.apply(model := bert(), "pre")
    return model


def ours() -> Any:
    from geonorm.hf import GeoNormConfig, GeoNormForCausalLM

    return GeoNormForCausalLM(GeoNormConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16))


def speed(scheme: str = "pre", u: tuple[int, int] = (2, 4)) -> Asked:
    return lambda: dynamics.speed(scheme, torch.randn(2, 4), torch.randn(u), SITE)


def probed(model: Callable[[], Any], data: Any) -> Asked:
    def call() -> object:
        from geonorm import probe

        return probe(model(), data)

    return call


CALLS = [
    Call("update of another shape", lambda: geodesic_update(STREAM, OTHER), ("8", "7")),
    Call("residual of a scheme that is no scheme", residual(scheme=3), ("scheme",)),
    Call("residual without a site", residual(site=None), ("site",)),
    Call("branch that gives back nothing", forward(torch.randn(2, 3, 8), lambda x: None), ("branch",)),
    Call("branch that gives back another width", forward(torch.randn(2, 3, 8), lambda x: x[..., :4]), ("branch",)),
    Call("stream of whole numbers", forward(torch.ones(2, 8, dtype=int), lambda x: x), ("float",)),
    Call("simulation of half a token", simulated(tokens=2.5), ("tokens must be a whole number",)),
    Call("apply to a convolution", in_hf("apply", lambda: nn.Conv2d(1, 1, 1), "geonorm"), ("Conv2d",)),
    Call("speed of a scheme that is no flow", speed(scheme="hyper"), ("hyper",)),
    Call("update of another type", lambda: geodesic_update(STREAM, torch.ones(2, 8, dtype=int)), ("floating-point",)),
    Call("simulation of a particle that is not finite", flowing(float("nan")), ("not finite",)),
    Call("simulation of a particle without a direction", flowing(0.0), ("zero vector",)),
    Call("apply twice", in_hf("apply", bert_applied, "post"), ("already applied",)),
    Call("apply to a model of ours", in_hf("apply", ours, "post"), ("its scheme is a field",)),
    Call("stock layout of a scheme that none has", in_hf("to_stock", ours), ("geonorm",)),
    Call("probe of text without a tokenizer", probed(ours, "text.txt"), ("tokenizer",)),
    Call("probe of a module without blocks", probed(lambda: nn.Linear(2, 2), [1, 2, 3]), ("by hand",)),
]
