"""Calls from Python that ask for what cannot be: each raises one line of a GeonormError, or a TypeError."""

from __future__ import annotations

from typing import Any

from situations import Call


def geodesic(*shapes: tuple[int, ...], **settings: Any) -> Any:
    def call() -> object:
        import torch

        from geonorm import geodesic_update

        return geodesic_update(*(torch.randn(shape) for shape in shapes), **settings)

    return call


def residual(**changes: Any) -> Any:
    def call() -> object:
        from torch import nn

        from geonorm import Residual, Site

        settings = {"branch": nn.Linear(8, 8), "scheme": "geonorm", "site": Site(0, "attn", 2), "dim": 8, **changes}
        return Residual(**settings)

    return call


def forward(x: Any, branch: Any = None) -> Any:
    def call() -> object:
        import torch
        from torch import nn

        from geonorm import Residual, Site

        made = Residual(branch or nn.Linear(8, 8), "geonorm", Site(0, "attn", 2), 8)
        return made(torch.randn(x) if isinstance(x, tuple) else x)

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


def applied(model: Any, scheme: str = "geonorm") -> Any:
    def call() -> object:
        import torch

        from geonorm import hf

        return hf.apply(model(torch.nn), scheme)

    return call


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


CALLS = [
    Call("update of another shape", geodesic((2, 8), (2, 7)), ("8", "7")),
    Call("update of a scalar", geodesic((), ()), ("dim",)),
    Call("update with a ceiling above pi", geodesic((2, 8), (2, 8), max_angle=7.0), ("max_angle",)),
    Call("update by an unknown backend", geodesic((2, 8), (2, 8), backend="fats"), ("unknown backend", "valid: auto")),
    Call("residual of a scheme that is no scheme", residual(scheme=3), ("scheme",)),
    Call("residual of an unknown norm", residual(norm="batch"), ("norm", "batch")),
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
    Call("decoder whose heads do not divide its width", decoder(heads=3), ("heads",)),
    Call("decoder of an unknown feed-forward", decoder(mlp="relu6"), ("mlp",)),
    Call("decoder of no words", decoder(vocab_size=0), ("vocab_size",)),
    Call("apply to a convolution", applied(lambda nn: nn.Conv2d(1, 1, 1)), ("Conv2d",)),
    Call("apply to something without modules", applied(lambda nn: "llama"), ("str",)),
    Call("apply an unknown scheme", applied(lambda nn: nn.Linear(2, 2), "geonrom"), ("did you mean 'geonorm'",)),
    Call("parse of bytes", parsed(b"pre"), ("string",)),
    Call("parse of nothing", parsed("  "), ("string",)),
    Call("parse of two schemes", parsed("pre post"), ("after the end",)),
    Call("parse of a division by zero", parsed("geonorm(alpha=1/0)"), ("zero",)),
    Call("speed of a scheme that is no flow", speed(scheme="hyper"), ("hyper",)),
    Call("speed of vectors of two widths", speed(u=__import__("torch").randn(2, 5)), ("shape",)),
    Call("probe of a module without blocks", probed(lambda nn: nn.Linear(2, 2), [1, 2, 3]), ("by hand",)),
]
