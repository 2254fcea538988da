"""The way `match` for our own decoders: as hf/match.py, but what is fitted goes into the matrices, so that the model is
one of its scheme and nothing else.

Gains and biases on what a branch reads are those of the matrices behind, W (g y + b) = (W g) y + W b; a factor on what
it proposes is one on the matrix that writes. The gate of a token's values reads it too, and has no bias.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...hf.block import Affine, Gain, norm_in
from ...hf.match import regress, scale
from ...modes import evaluating
from ...nn.decoder import Decoder
from ...nn.trunk import End
from ...nn.values import TokenValues
from ...residual import Residual
from ...schemes import Site, read_at, write_at
from ...sites.watch import ModelSite, sites_of, stream_of, tensor_of, watch, watch_calls
from ..train.matrices import WRITERS

Factors = list[tuple[Tensor, Tensor]]
"""Weights that were multiplied, each with its factors in a shape that broadcasts."""
SMALLEST = 1e-6
"""Factors below this are left out: what is divided by them would not come back."""


class Seen:
    """What the original did at its sites, and what left it."""

    def __init__(self, original: Decoder, ids: Tensor) -> None:
        self.reads: dict[Site, Tensor] = {}
        self.after: dict[Site, Tensor] = {}
        self.end: dict[str, Tensor] = {}

        def look(place: ModelSite, x: Tensor, u: Tensor, after: Tensor) -> None:
            self.after[place.site] = place.seen(after)

        branches: dict[Site, nn.Module] = {site: residual.branch for site, residual in original.residuals()}
        with (
            watch(original, look, sites_of(original)),
            watch_calls(branches, lambda site, y, _: self.reads.update({site: y})),
            watch_calls({"exit": original.exit}, lambda name, _, out: self.end.update({name: out})),
        ):
            original(ids)


@torch.no_grad()
def fit(model: Decoder, original: Decoder, ids: Tensor) -> Factors:
    """Fits a decoder that has the weights of another to what that one does on ids (batch, tokens), site after site, and
    says which weights were multiplied by what."""
    seen, handles, fitted = Seen(original, ids), [], []
    for site, residual in model.residuals():
        hooks = Fit(residual, seen.reads[site], seen.after[site], model.config.bias)
        fitted.append(hooks)
        handles.append(residual.register_forward_pre_hook(hooks.enter, with_kwargs=True))
        handles.append(residual.branch.register_forward_pre_hook(hooks.read))
        handles.append(residual.branch.register_forward_hook(hooks.write))
    handles.append(model.exit.register_forward_pre_hook(partial(fit_end, seen.end["exit"])))
    if norm_in(model.exit.own, "norm") is None:
        fitted[-1].beyond = seen.end["exit"]
    with evaluating(model):
        model(ids)
    for handle in handles:
        handle.remove()
    return [pair for hooks in fitted for pair in hooks.fold()]


class Fit:
    """What is fitted at one site, when the computation reaches it."""

    def __init__(self, residual: Residual, reads: Tensor, after: Tensor, bias: bool) -> None:
        self.residual, self.reads, self.after = residual, reads, after
        like = next(residual.branch.parameters())
        self.gates = [m.gate for m in residual.branch.modules() if isinstance(m, TokenValues)]
        self.gains = Affine(reads.shape[-1], bias and not self.gates).to(like.device)
        self.gain = Gain().to(like.device)
        self.x: Any = None
        self.beyond: Tensor | None = None
        """What the last norm on the stream should give, where there is none behind it."""

    def enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.x = stream_of(args, kwargs)

    def read(self, _: nn.Module, args: Any) -> Any:
        y, norm = args[0], norm_in(self.residual.own, "input")
        if norm is None:
            regress(self.gains, partial(self.gains, y), self.reads)
            return self.gains(y), *args[1:]
        regress(norm, self.read_now, self.reads)
        return self.read_now().to(y.dtype), *args[1:]

    def read_now(self) -> Tensor:
        return read_at(self.residual.scheme, self.x, self.residual.own(), self.residual.site(self.x))[0]

    def write(self, _: nn.Module, args: Any, out: Any) -> Any:
        residual, u = self.residual, tensor_of(out)
        scheme, p, site = residual.scheme, residual.own(), residual.site(self.x)
        carry = read_at(scheme, self.x, p, site)[1]

        def written() -> Tensor:
            return write_at(scheme, self.x, self.gain(u), p, site, carry=carry)

        norm = norm_in(residual.own, "output")
        weight: Any = self.gain.weight if norm is None else norm.weight
        if weight is not None:
            scale(weight, lambda: scheme.seen(written()), self.after)
        stream = norm_in(residual.own, "stream")
        if self.beyond is not None and stream is not None:
            regress(stream, written, self.beyond)
        return (self.gain(u), *out[1:]) if isinstance(out, tuple) else self.gain(u)

    def fold(self) -> Factors:
        """Puts the gains into the matrices."""
        found: Factors = []
        roled = (m for m in self.residual.branch.modules() if isinstance(m, nn.Linear) and hasattr(m, "role"))
        for linear in roled:
            if linear.role in WRITERS:
                factor = self.gain.weight.detach().reshape(1)
                found += [(weight, factor) for weight in (linear.weight, linear.bias) if weight is not None]
            else:
                if linear.bias is not None and self.gains.bias is not None:
                    linear.bias.add_(linear.weight @ self.gains.bias)
                found.append((linear.weight, self.gains.weight.detach()))
        found += [(gate, self.gains.weight.detach()[: gate.shape[1]]) for gate in self.gates]
        for weight, factors in found:
            weight.mul_(factors)
        return found


def fit_end(wanted: Tensor, end: End, args: Any) -> None:
    norm = norm_in(end.own, "norm")
    if norm is not None:
        regress(norm, lambda: End.forward(end, args[0]), wanted)


@torch.no_grad()
def divide_state(optimizers: list[torch.optim.Optimizer], factors: Factors) -> None:
    """What an optimizer remembers of weights that were multiplied, as it would be of them: gradients of W f are those
    of W over f, their squares over f^2."""
    for optimizer in optimizers:
        for weight, factor in factors:
            for name, value in optimizer.state.get(weight, {}).items():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    safe = torch.where(factor.abs() < SMALLEST, 1.0, factor)
                    value.div_(safe.square() if name == "exp_avg_sq" else safe)
