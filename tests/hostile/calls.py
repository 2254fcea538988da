"""Calls from Python that ask for what cannot be: each raises one line of a GeonormError, or a TypeError."""

from __future__ import annotations

from typing import Any

from setting import Call


def geodesic(*shapes: tuple[int, ...], **settings: Any) -> Any:
    def call() -> object:
        import torch

        from geonorm import geodesic_update

        return geodesic_update(*(torch.randn(shape) for shape in shapes), **settings)

    return call


def typed(*types: str) -> Any:
    def call() -> object:
        import torch

        from geonorm import geodesic_update

        return geodesic_update(*(torch.ones(2, 8, dtype=getattr(torch, name)) for name in types))

    return call


def flowing(value: float) -> Any:
    def call() -> object:
        import torch

        from geonorm.dynamics import Attention, Flow

        return Flow("pre", Attention()).start(torch.full((3, 4), value))

    return call


def residual(**changes: Any) -> Any:
    def call() -> object:
        from torch import nn

        from geonorm import Residual, Site

        settings = {"branch": nn.Linear(8, 8), "scheme": "geonorm", "site": Site(0, "attn", 2), "dim": 8, **changes}
        return Residual(**settings)

    return call


def forward(x: Any, function: Any) -> Any:
    """Through a residual whose branch is that function."""

    def call() -> object:
        import torch
        from torch import nn

        from geonorm import Residual, Site

        branch = nn.Identity()
        branch.forward = function
        return Residual(branch, "geonorm", Site(0, "attn", 2), 8)(torch.randn(x) if isinstance(x, tuple) else x)

    return call


def simulated(**settings: Any) -> Any:
    def call() -> object:
        from geonorm import simulate

        return simulate(**{"schemes": ["pre"], "tokens": 4, "dim": 4, "time": 2.0, "points": 8, "seeds": 1, **settings})

    return call


def decoder(**settings: Any) -> Any:
    def call() -> object:
        from geonorm import Decoder, DecoderConfig

        small = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}
        return Decoder(DecoderConfig(**{**small, **settings}))

    return call


def in_hf(verb: str, model: Any, *rest: Any, **settings: Any) -> Any:
    def call() -> object:
        import torch

        from geonorm import hf

        return getattr(hf, verb)(model(torch.nn), *rest, **settings)

    return call


def bert(nn: Any, **settings: Any) -> Any:
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertModel(BertConfig(vocab_size=16, max_position_embeddings=8, **small, **settings))


def bert_applied(nn: Any) -> Any:
    from geonorm import hf

    model = bert(nn)
    hf.apply(model, "pre")
    return model


def ours(nn: Any) -> Any:
    from geonorm.hf import GeoNormConfig, GeoNormForCausalLM

    return GeoNormForCausalLM(GeoNormConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16))


def parsed(text: Any) -> Any:
    def call() -> object:
        from geonorm import parse

        return parse(text)

    return call


def speed(**changes: Any) -> Any:
    def call() -> object:
        import torch

        from geonorm import Site, dynamics

        given = {"scheme": "pre", "x": torch.randn(2, 4), "u": torch.randn(2, 4), "site": Site(0, "attn", 2), **changes}
        return dynamics.speed(given["scheme"], given["x"], given["u"], given["site"])

    return call


def probed(model: Any, *rest: Any, **settings: Any) -> Any:
    def call() -> object:
        import torch

        from geonorm import probe

        return probe(model(torch.nn), *rest, **settings)

    return call


BEYOND = __import__("torch").tensor([[1, 99]])

CALLS = [
    Call("update of another shape", geodesic((2, 8), (2, 7)), ("8", "7")),
    Call("update of a scalar", geodesic((), ()), ("dim",)),
    Call("residual of a scheme that is no scheme", residual(scheme=3), ("scheme",)),
    Call("residual of no width", residual(dim=0), ("dim",)),
    Call("residual with a negative eps", residual(eps=-1.0), ("eps",)),
    Call("residual without a site", residual(site=None), ("site",)),
    Call("branch that gives back nothing", forward((2, 3, 8), lambda x: None), ("branch",)),
    Call("branch that gives back another width", forward((2, 3, 8), lambda x: x[..., :4]), ("branch",)),
    Call("stream of whole numbers", forward(__import__("torch").ones(2, 8, dtype=int), lambda x: x), ("float",)),
    Call("simulation of a setting that is none", simulated(tokes=3), ("did you mean 'tokens'",)),
    Call("simulation of half a token", simulated(tokens=2.5), ("tokens must be a whole number",)),
    Call("simulation on a device that is none", simulated(device="tpu"), ("tpu",)),
    Call("simulation of nothing", simulated(schemes=[]), ("empty",)),
    Call("decoder of an unknown feed-forward", decoder(mlp="relu6"), ("mlp",)),
    Call("apply to a convolution", in_hf("apply", lambda nn: nn.Conv2d(1, 1, 1), "geonorm"), ("Conv2d",)),
    Call("apply to something without modules", in_hf("apply", lambda nn: "llama", "geonorm"), ("str",)),
    Call("parse of bytes", parsed(b"pre"), ("string",)),
    Call("parse of nothing", parsed("  "), ("string",)),
    Call("parse of two schemes", parsed("pre post"), ("after the end",)),
    Call("parse of a division by zero", parsed("geonorm(alpha=1/0)"), ("zero",)),
    Call("speed of a scheme that is no flow", speed(scheme="hyper"), ("hyper",)),
    Call("speed of vectors of two widths", speed(u=__import__("torch").randn(2, 5)), ("shape",)),
    Call("residual of a function", residual(branch=len), ("branch", "torch.nn.Module")),
    Call("stream of another width", forward((2, 3, 9), lambda x: x), ("9", "8")),
    Call("update of another type", typed("float32", "int64"), ("floating-point",)),
    Call("parse of code", parsed("geonorm(alpha=__import__('os'))"), ("unknown scheme '__import__'",)),
    Call("simulation of a particle that is not finite", flowing(float("nan")), ("not finite",)),
    Call("simulation of a particle without a direction", flowing(0.0), ("zero vector",)),
    Call("decoder with another field", decoder(widht=3), ("widht",)),
    Call("apply twice", in_hf("apply", bert_applied, "post"), ("already applied",)),
    Call("apply to a model of ours", in_hf("apply", ours, "post"), ("its scheme is a field",)),
    Call("apply in a way that is none", in_hf("apply", bert, "post", init="guess"), ("unknown init",)),
    Call("apply with a probe and nothing to fit", in_hf("apply", bert, "post", probe=[[1]]), ("match",)),
    Call(
        "apply with ids that the model does not know", in_hf("apply", bert, "pre", init="match", probe=BEYOND), ("99",)
    ),
    Call("restore of a model as it came", in_hf("restore", bert), ("nothing to restore",)),
    Call("fold of a stock model", in_hf("fold", bert), ("BertModel",)),
    Call("stock layout of a scheme that none has", in_hf("to_stock", ours), ("geonorm",)),
    Call("probe of no data", probed(ours, []), ("no data",)),
    Call("probe of text without a tokenizer", probed(ours, "text.txt"), ("tokenizer",)),
    Call("probe of a module without blocks", probed(lambda nn: nn.Linear(2, 2), [1, 2, 3]), ("by hand",)),
]
