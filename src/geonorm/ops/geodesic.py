"""The geodesic update of GeoNorm (arXiv:2601.22095), on the path that `available` chooses.

    c = <x,u>/<x,x>;  v = u - c x;  ratio = |v|/|x|
    x' = cos(h angle) x + sin(h angle) |x| v/|v|,    angle = AngleMap(ratio)

Row maths is fp32 (fp64 for fp64 inputs) whatever the inputs; x' has the dtype of x. |x'| = |x|. u = 0 and u parallel
to x leave x as it is, and an x whose square is below the least normal number (|x| < 1.1e-19 in fp32), 0 among them,
stays, too; NaN and Inf give NaN on their own row only.
"""

from collections.abc import Sequence
from math import inf, pi
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from . import fused
from .angle import AngleMap
from .available import choose_backend, read_backend, why_not_triton
from .closed_form import closed_form
from .reference import reference
from .sums import fused_write


def geodesic_update(
    x: Tensor, u: Tensor, *, decay: float | Tensor = 1.0, max_angle: float = pi / 4, backend: str = "auto"
) -> Tensor:
    """Moves x along the geodesic of the tangential part of u, by min(decay * min(ratio, max_angle), max_angle).

    x: (..., dim), the stream; u: the same shape, the raw output of the sub-layer, of any floating dtype. decay: 1/(l+1)
    in the paper for block l counted from 0; a positive number or a tensor of one. max_angle in radians. Returns x' like
    x. Raises ConfigError for shapes that differ, other dtypes, a decay that is no positive number (of a tensor only the
    shape is looked at), max_angle outside (0, pi] or an unknown backend.

    A decay that requires a gradient takes the closed form: the fused kernels have none of it.

    Derivatives of every order are those of the textbook, but code under torch.compile has first ones alone: PyTorch's
    compilers refuse a second one, or, where the loss itself is compiled, drop it for any operation, plain ones too.

    >>> x, u = torch.randn(3, 64), torch.randn(3, 64)
    >>> y = geonorm.geodesic_update(x, u, decay=1 / 2)  # block l = 1 of the paper's rule
    >>> torch.allclose(y.norm(dim=-1), x.norm(dim=-1))
    True
    """
    if x.shape != u.shape or x.dim() == 0:
        raise ConfigError(f"x and u must have one shape (..., dim), got {tuple(x.shape)} and {tuple(u.shape)}")
    if not (x.is_floating_point() and u.is_floating_point()):
        raise ConfigError(f"x and u must be floating-point tensors, got {x.dtype} and {u.dtype}: convert them first")
    if isinstance(decay, Tensor):
        if decay.numel() != 1:
            raise ConfigError(f"decay must be one number, got a tensor of shape {tuple(decay.shape)}")
        decay = decay.reshape(())  # of any other shape it would be one of the shape of x'
    elif not 0 < decay < inf:
        raise ConfigError(f"decay must be a positive number, 1/(l+1) for block l counted from 0, got {decay}")
    if not 0 < max_angle <= pi:
        raise ConfigError(f"max_angle must lie in (0, pi], got {max_angle}")
    return geodesic_step(x, u, AngleMap(post=decay, max_angle=max_angle), backend=backend)


def geodesic_step(x: Tensor, u: Tensor, angles: AngleMap, h: float | Tensor = 1.0, backend: str = "auto") -> Tensor:
    """The update under any angle map. h scales the angle of the step: a tensor h takes the plain reference, which is
    differentiable forward and backward (d/dh at 0 is the velocity of the particle system).

    >>> x, u = torch.tensor([1.0, 0.0]), torch.tensor([5.0, 0.1])
    >>> geonorm.ops.geodesic_step(x, u, geonorm.ops.AngleMap())  # 0.1 radians
    tensor([0.9950, 0.0998])
    """
    path = choose_backend(backend, x, u, angles)
    full = isinstance(h, float) and h == 1.0
    if path == "reference" and backend == "auto" and full and leaves_vmap(x, u, angles):
        return StepUnderVmap.apply(x, u, angles)
    if path == "reference" or not full:
        return reference(x, u, angles, h)
    if path == "triton":
        return fused.write(x, u, *fused.plan_step(angles))
    return closed_form(x, u, angles)


def leaves_vmap(x: Tensor, u: Tensor, angles: AngleMap) -> bool:
    """True if the innermost `torch.func.vmap` maps x or u and nothing of the angles. Not while a graph is traced:
    compilers know no rule of vmap, and fuse the textbook themselves."""
    numbers = [angles.pre, angles.post, angles.gain, angles.bias, angles.max_angle]
    return not torch.compiler.is_compiling() and (is_mapped(x) or is_mapped(u)) and not any(map(is_mapped, numbers))


def is_mapped(value: float | Tensor | None) -> bool:
    """True if the innermost transform of `torch.func` is a vmap over this value. Tensors that an outer vmap maps, seen
    from within a gradient, are batched as well, but not mapped here."""
    functorch = torch._C._functorch
    batched = isinstance(value, Tensor) and functorch.is_batchedtensor(value)
    return batched and functorch.maybe_get_level(value) == functorch.maybe_current_level()  # type: ignore[arg-type]


class StepUnderVmap(torch.autograd.Function):
    """The step of mapped rows: outside of the transform, where the mapped axis stands in front of the others, every
    path can run."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """torch.func wants one, and never calls it."""

    @staticmethod
    def vmap(info: Any, dims: Sequence[Any], x: Tensor, u: Tensor, angles: AngleMap) -> tuple[Tensor, int]:
        x, u = (
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((x, u), dims[:2], strict=True)
        )
        return geodesic_step(x, u, angles), 0


def geodesic_step_read(
    x: Tensor,
    u: Tensor,
    angles: AngleMap,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
    norm: nn.Module | None = None,
) -> tuple[Tensor, Tensor]:
    """The update, and what the next sub-layer reads of it, in its dtype (default: that of x): the same once more or,
    with `norm`, a module from (..., dim) to (..., dim), the norm of it.

    The kernels write both in one pass and add both gradients in one pass: 3 + 6 passes over memory, where a stream that
    is used twice costs 3 + 5 and an addition of three. Without a norm and with equal dtypes both results share memory.
    An RMSNorm or LayerNorm of rows up to 8192 wide is part of the kernels, 4 + 6 passes, and sees x' as it is in
    memory; any other module is called.

    >>> x, u = torch.randn(4, 8), torch.randn(4, 8)
    >>> x, y = geonorm.ops.geodesic_step_read(x, u, geonorm.ops.AngleMap(), norm=torch.nn.RMSNorm(8))
    >>> y.square().mean(-1)
    tensor([1.0..., 1.0..., 1.0..., 1.0...], grad_fn=...)
    """
    dtype = x.dtype if dtype is None else dtype
    written = fused_write(x, u, angles, dtype, norm, backend)
    if written is not None:
        return written
    out = geodesic_step(x, u, angles, backend=backend)
    return out, (out if norm is None else norm(out)).to(dtype)


def backends(device: str = "") -> dict[str, str]:
    """The path that `auto` takes on a device ("cpu", "cuda"; default: the GPU if any), and why, for the paper's
    rule in dtypes and widths that the kernels know: {"auto": path, "reason": text}.

    >>> geonorm.ops.backends("cpu")["auto"]
    'closed'
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if (wanted := read_backend("auto")) != "auto":
        return {"auto": wanted, "reason": "GEONORM_BACKEND asks for it"}
    if device == "cpu":
        return {"auto": "closed", "reason": "closed form in PyTorch: a third of the memory passes of the textbook"}
    if missing := why_not_triton(torch.device(device), (torch.float32,), 1024, AngleMap()):
        return {"auto": "closed", "reason": f"closed form in PyTorch; no fused kernels: {missing}"}
    return {"auto": "triton", "reason": "fused kernels: 3 passes over memory forward, 5 backward"}
