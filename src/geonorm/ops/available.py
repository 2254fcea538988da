"""Which path of the geodesic update can run where, and which one `auto` takes."""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from ..errors import ConfigError, unknown
from ..norms import is_transformed
from . import launch
from .angle import AngleMap

BACKENDS = ("auto", "triton", "closed", "reference")
"""auto: the fastest path that fits; triton: the fused kernels, of the paper's angle map, of one angle for all tokens
and of weighted sums; closed: closed-form forward and backward in PyTorch; reference: the textbook under autograd."""

REMEDY = "use backend='auto' (or unset GEONORM_BACKEND)"


HAS_TRITON = find_spec("triton") is not None
"""Asked once, here: torch 2.11 cannot trace the question, and breaks every graph at every residual."""


def interpreting() -> bool:
    """True if Triton runs its kernels in Python, on CPU tensors: slow, for tests."""
    return HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"


def why_not_triton(device: torch.device, dtypes: tuple[torch.dtype, ...], dim: int, angles: AngleMap) -> str:
    """Empty if the kernels can run, else the reason and what to do."""
    if device.type != "cuda" and not (device.type == "cpu" and interpreting()):
        return f"the tensors are on {device.type}, not cuda: {REMEDY}"
    if not HAS_TRITON:
        return 'it is not installed: pip install "geonorm[kernels]"'
    for dtype in dtypes:
        if dtype not in launch.DTYPES:
            return f"it takes float32, bfloat16 and float16, not {str(dtype).removeprefix('torch.')}: {REMEDY}"
    if not 0 < dim <= launch.MAX_DIM:
        return f"rows may be 1 to {launch.MAX_DIM} wide, not {dim}: {REMEDY}"
    if not fusible(angles):
        return f"it has no learned scalars, no bias, no decay before the clamp and no p atan(t / p): {REMEDY}"
    return ""


def fusible(angles: AngleMap) -> bool:
    """True if the kernels have this map: a decay that nobody learns, after the clamp of the ratio itself, or of one
    angle for all tokens."""
    learned = isinstance(angles.post, Tensor) and angles.post.requires_grad and torch.is_grad_enabled()
    return (angles.bare or angles.levelled) and not learned


def read_backend(backend: str) -> str:
    """The argument, else the environment variable GEONORM_BACKEND, else auto."""
    where = ""
    if backend == "auto":
        backend, where = os.environ.get("GEONORM_BACKEND", "auto"), " in $GEONORM_BACKEND"
    if backend not in BACKENDS:
        raise ConfigError(unknown("backend", backend, BACKENDS) + where)
    return backend


def choose_backend(backend: str, x: Tensor, u: Tensor, angles: AngleMap) -> str:
    """The path for these tensors: triton | closed | reference. ConfigError if the one asked for cannot take them.
    What is transformed takes the reference whatever was asked; `geodesic_step` leaves `vmap` first."""
    backend = read_backend(backend)
    kernels = backend == "triton" or (backend == "auto" and x.is_cuda)
    reason = why_not_triton(x.device, (x.dtype, u.dtype), x.shape[-1], angles) if kernels else ""
    if backend == "triton" and reason:
        raise ConfigError(f"backend 'triton' cannot run here, {reason}")
    if is_transformed():
        return "reference"
    if not kernels:
        return "closed" if backend == "auto" else backend
    if not reason and x.device != u.device:
        raise ConfigError(f"x and u must be on one device, got {x.device} and {u.device}")
    return "closed" if reason else "triton"


def kernels_add(x: Tensor, u: Tensor) -> bool:
    """True if the kernels compute weighted sums of these tensors: where they would turn them, but under torch.compile,
    which fuses sums and norms itself, only if they are asked for."""
    wanted = read_backend("auto") == "triton" or not torch.compiler.is_compiling()
    return wanted and choose_backend("auto", x, u, AngleMap()) == "triton"
