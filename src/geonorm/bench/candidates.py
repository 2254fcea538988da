"""What is measured beside what, and the truth each is compared with.

Every candidate takes the stream x and the update u, both (rows, dim), and returns what the model goes on with: the new
stream, or, for Pre-Norm, the sum and its RMSNorm, which the next sub-layer reads. Pre-Norm stands here without gains,
its fastest form; Liger's kernel has them always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError
from ..ops import geodesic_update

EPS = 1e-6
MAX_ANGLE = pi / 4
Forward = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Candidate:
    """One way to compute one of the two functions. `reads`: gradients that reach the new stream, one where autograd has
    summed them already."""

    name: str
    forward: Forward
    norm: bool = False
    compiled: bool = False
    reads: int = 1

    @property
    def ours(self) -> bool:
        return not self.norm

    def bytes(self, mode: str, count: int, stream: int, update: int) -> int:
        """The least that must pass through memory for `count` elements of `stream` and `update` bytes: every input read
        once, every output written once, three scalars a row left out."""
        if self.norm:  # x, u -> sum, y; dsum, dy, sum -> dx, which is du where the types agree
            forward = 2 * stream + 2 * update
            backward = 3 * stream + update + (update if update != stream else 0)
        else:  # x, u -> x'; dx' once per reader, x, u -> dx, du
            forward = 2 * stream + update
            backward = (self.reads + 2) * stream + 2 * update
        return count * {"fwd": forward, "bwd": backward, "both": forward + backward}[mode]


def step(backend: str, decay: Tensor, reads: int = 1) -> Forward:
    """The geodesic update on one path."""

    def forward(x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        return (geodesic_update(x, u, decay=decay, max_angle=MAX_ANGLE, backend=backend),) * reads

    return forward


def add_norm(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """What Pre-Norm does between two sub-layers."""
    total = x + u
    return total, F.rms_norm(total, (total.shape[-1],), eps=EPS).to(u.dtype)


def candidates(device: torch.device) -> tuple[list[Candidate], dict[str, str]]:
    """Everything that can run here, and why the rest cannot."""
    decay = torch.tensor(0.5, device=device)  # a tensor, as a layer passes it
    found = [
        Candidate("geonorm", step("auto", decay)),
        Candidate("geonorm, read twice", step("auto", decay, 2), reads=2),
    ]
    missing: dict[str, str] = {}
    for backend in ("closed", "triton"):
        try:
            step(backend, decay)(*probe(device))
        except ConfigError as error:
            missing[f"geonorm {backend}"] = str(error)
        else:
            found.append(Candidate(f"geonorm {backend}", step(backend, decay)))
    found += [
        Candidate("geonorm compiled", step("auto", decay), compiled=True),
        Candidate("geonorm textbook", step("reference", decay)),
        Candidate("geonorm textbook compiled", step("reference", decay), compiled=True),
        Candidate("add + rms_norm", add_norm, norm=True),
        Candidate("add + rms_norm compiled", add_norm, norm=True, compiled=True),
    ]
    for name, load in FUSED.items():
        try:
            forward = load()
            forward(*probe(device))
        except Exception as error:  # a library of others, or a GPU that is not there, may fail in any way
            missing[name] = f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0][:120]}"
        else:
            found.append(Candidate(name, forward, norm=True))
    return found, missing


def probe(device: torch.device) -> tuple[Tensor, Tensor]:
    """The smallest honest input."""
    x, u = torch.randn(2, 4, 64, device=device).unbind()
    return x, u


def liger() -> Forward:
    """Liger-Kernel's fused addition and RMSNorm (Triton)."""
    fused = import_module("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction

    def forward(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        y, total = fused.apply(u, x, ones(x, u.dtype), EPS, 0.0, "llama", False)
        return total, y

    return forward


def flash_attn() -> Forward:
    """flash-attn's fused addition and RMSNorm (Triton)."""
    norm = import_module("flash_attn.ops.triton.layer_norm").rms_norm_fn

    def forward(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        y, total = norm(u, ones(x, u.dtype), None, residual=x, eps=EPS, prenorm=True)
        return total, y

    return forward


def quack() -> Forward:
    """QuACK's fused addition and RMSNorm (CuTe)."""
    norm = import_module("quack").rmsnorm

    def forward(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        y, total = norm(u, ones(x, u.dtype), residual=x, eps=EPS, prenorm=True)
        return total, y

    return forward


_ONES: dict[Any, Tensor] = {}


def ones(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Gains of one, made once per width."""
    key = (x.shape[-1], dtype, x.device)
    if key not in _ONES:
        _ONES[key] = torch.ones(x.shape[-1], dtype=dtype, device=x.device)
    return _ONES[key]


FUSED: dict[str, Callable[[], Forward]] = {"Liger": liger, "flash-attn": flash_attn, "QuACK": quack}
"""Fused kernels of others for the same place in Pre-Norm."""
