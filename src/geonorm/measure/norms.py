"""The norms of any model: which modules are norms, and of which kind, by their output for a few vectors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

OTHERS = ("normgated", "batch", "group", "instance", "local", "weight", "spectral", "nonorm")
"""Normalisations that are not over the features of one token."""


@dataclass(frozen=True)
class NormFacts:
    """The kind of a norm: centred is True for one that removes the mean (LayerNorm), False for RMSNorm, None for any
    other. gain multiplies (1 + weight for Gemma) and bias is added after; fp32, or None."""

    centred: bool | None
    gain: Tensor | None
    bias: Tensor | None

    @property
    def kind(self) -> str:
        return "other" if self.centred is None else "layer" if self.centred else "rms"


def norms_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module that normalises the features of a token, by name, in the order of the model: LayerNorm, RMSNorm and
    modules with "norm" in the name of their class. Batch, group and instance norms are none of these."""
    return {name: module for name, module in model.named_modules() if is_norm(module)}


def is_norm(module: nn.Module) -> bool:
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return len(module.normalized_shape) == 1
    name = type(module).__name__.lower()
    if "norm" not in name and name not in ("dyt", "derf"):
        return False
    if any(other in name for other in OTHERS) or list(module.children()):
        return False
    return name == "gatednorm" or all(p.dim() <= 1 for p in module.parameters(recurse=False))


def channels_first(module: nn.Module) -> bool:
    """True if features are along dim 1, (batch, features, height, width), as in ConvNeXt."""
    return getattr(module, "data_format", None) == "channels_first"


@torch.no_grad()
def examine(module: nn.Module, like: Tensor) -> NormFacts:
    """The kind of a norm from its outputs for a few vectors of the last dimension and the dtype and device of `like`.

    Unchanged by a shift of its input: LayerNorm; by its scale alone: RMSNorm; by neither, or with a gate that depends
    on the token: another. Small whole numbers, so that bf16 holds shift and scale exactly.

    >>> examine(torch.nn.LayerNorm(8), torch.zeros(1, 8)).kind
    'layer'
    """
    generator = torch.Generator().manual_seed(0)
    dim = like.shape[-1]
    x = torch.randint(-3, 4, (8, dim), generator=generator).to(like.device, like.dtype)
    x[:, 0], x[:, -1] = 5, -4  # never constant, and never without a mean

    def output(values: Tensor) -> Tensor:
        if channels_first(module):
            return module.forward(values[:, :, None, None])[:, :, 0, 0].float()
        return module.forward(values).float()

    plain, shifted, doubled = output(x), output(x + 2), output(2 * x)
    tolerance = 0.02 * plain.abs().max().clamp(min=1e-30)
    scale_free = bool((plain - doubled).abs().max() < tolerance)
    gated = any(p.dim() > 1 for p in module.parameters(recurse=False))
    centred = None if gated or not scale_free else bool((plain - shifted).abs().max() < tolerance)
    with weights_in_memory(module):
        bias = vector(module, "bias", dim)
        gain = vector(module, "weight", dim)
    if gain is not None and centred is not None:
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True) if centred else wide
        unit = wide / wide.square().mean(-1, keepdim=True).sqrt()
        rest = plain - (0 if bias is None else bias)
        gain = min(gain, gain + 1, key=lambda gain: float((rest - unit * gain).abs().mean()))
    return NormFacts(centred, gain, bias)


def weights_in_memory(module: nn.Module) -> AbstractContextManager[None]:
    """Inside, a module whose weights `device_map` keeps on disk has them."""
    if not any(p.is_meta for p in module.parameters()):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)


def vector(module: nn.Module, name: str, dim: int) -> Tensor | None:
    """A learned vector in fp32, or None."""
    value: Any = getattr(module, name, None)
    return value.detach().float() if isinstance(value, Tensor) and value.shape == (dim,) else None
