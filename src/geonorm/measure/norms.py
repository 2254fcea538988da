"""The norms of any model: which modules are norms."""

from contextlib import AbstractContextManager, nullcontext

from torch import nn

OTHERS = ("normgated", "batch", "group", "instance", "local", "weight", "spectral")
"""Normalisations that are not over the features of one token."""


def norms_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module that normalises the features of a token, by name, in the order of the model: LayerNorm, RMSNorm and
    modules with "norm" in the name of their class. Batch, group and instance norms are none of these."""
    return {name: module for name, module in model.named_modules() if is_norm(module)}


def is_norm(module: nn.Module) -> bool:
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return len(module.normalized_shape) == 1
    name = type(module).__name__.lower()
    named = "norm" in name or name in ("dyt", "derf")
    if not named or any(other in name for other in OTHERS) or list(module.children()):
        return False
    return name == "gatednorm" or all(p.dim() <= 1 for p in module.parameters(recurse=False))


def weights_in_memory(module: nn.Module) -> AbstractContextManager[None]:
    """Inside, a module whose weights `device_map` keeps on disk has them."""
    if not any(p.is_meta for p in module.parameters()):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)
