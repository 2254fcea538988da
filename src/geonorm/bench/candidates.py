"""What is measured beside what, and the truth each is compared with.

Every candidate takes the stream x and the update u, both (rows, dim), and returns what the model goes on with: the new
stream; the new stream and what the next sub-layer reads of it ("read twice"; "read through a norm" is its RMSNorm with
gains, as under `input=norm`); for Pre-Norm, the sum and its RMSNorm.
Ratios are to Pre-Norm without gains, its fastest form. With gains, as models have them and the fused kernels of others
always, a candidate takes them as a third argument and gives their gradient, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError, cause
from ..norms import RMSNorm
from ..ops import AngleMap, geodesic_step_read, geodesic_update

EPS = 1e-6
MAX_ANGLE = pi / 4
Forward = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Candidate:
    """One way to compute one of the functions. `read`: the new stream comes twice, as stream and as what is read;
    `through`: what is read is its RMSNorm."""

    name: str
    forward: Forward
    norm: bool = False
    compiled: bool = False
    read: bool = False
    through: bool = False
    gains: bool = False

    @property
    def ours(self) -> bool:
        return not self.norm

    def bytes(self, mode: str, count: int, stream: int, update: int) -> int:
        """The least that must pass through memory for `count` elements of `stream` and `update` bytes: every input read
        once, every output written once, row scalars and gains left out. Equal results of one type share memory."""
        apart = update if update != stream else 0
        if self.norm:  # x, u -> sum, y; dsum, dy, sum -> dx, du
            forward, backward = 2 * stream + 2 * update, 3 * stream + update + apart
        elif self.through:  # x, u -> x', y; dx', dy, x, u -> dx, du
            forward, backward = 2 * stream + 2 * update, 3 * stream + 3 * update
        elif self.read:  # x, u -> x', y; dx', dy, x, u -> dx, du
            forward, backward = 2 * stream + update + apart, 3 * stream + 3 * update
        else:  # x, u -> x'; dx', x, u -> dx, du
            forward, backward = 2 * stream + update, 3 * stream + 2 * update
        return count * {"fwd": forward, "bwd": backward, "both": forward + backward}[mode]


def make_step(backend: str, decay: Tensor) -> Forward:
    """The geodesic update on one path."""

    def forward(x: Tensor, u: Tensor) -> tuple[Tensor]:
        return (geodesic_update(x, u, decay=decay, max_angle=MAX_ANGLE, backend=backend),)

    return forward


def make_step_read(backend: str, decay: Tensor) -> Forward:
    """The same with a second result for the next sub-layer, in the dtype of the update."""

    def forward(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return geodesic_step_read(x, u, AngleMap(post=decay, max_angle=MAX_ANGLE), u.dtype, backend)

    return forward


def make_step_norm(backend: str, decay: Tensor) -> Forward:
    """The update and its RMSNorm with gains, in the dtype of the update."""

    norm = RMSNorm(0, gains=False, eps=EPS)

    def forward(x: Tensor, u: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        norm.dim, norm.weight = x.shape[-1], gains  # type: ignore[assignment]  # a leaf of the caller's
        return geodesic_step_read(x, u, AngleMap(post=decay, max_angle=MAX_ANGLE), u.dtype, backend, norm)

    return forward


def add_norm(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """What Pre-Norm does between two sub-layers."""
    total = x + u
    return total, F.rms_norm(total, (total.shape[-1],), eps=EPS).to(u.dtype)


def add_norm_gains(x: Tensor, u: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
    """The same with gains, as models have them."""
    total = x + u
    return total, F.rms_norm(total, (total.shape[-1],), gains, eps=EPS).to(u.dtype)


def candidates(device: torch.device) -> tuple[list[Candidate], dict[str, str]]:
    """Everything that can run here, and why the rest cannot."""
    decay = torch.tensor(0.5, device=device)  # a tensor, as a layer passes it
    found = [
        Candidate("geonorm", make_step("auto", decay)),
        Candidate("geonorm, read twice", make_step_read("auto", decay), read=True),
        Candidate("geonorm, read through a norm", make_step_norm("auto", decay), read=True, through=True, gains=True),
    ]
    missing: dict[str, str] = {}
    for backend in ("closed", "triton"):
        try:
            make_step(backend, decay)(*probe(device))
        except ConfigError as error:
            missing[f"geonorm {backend}"] = str(error)
        else:
            found.append(Candidate(f"geonorm {backend}", make_step(backend, decay)))
    found.append(Candidate("geonorm compiled", make_step("auto", decay), compiled=True))
    found.append(
        Candidate(
            "geonorm compiled, read through a norm",
            make_step_norm("auto", decay),
            compiled=True,
            read=True,
            through=True,
            gains=True,
        )
    )
    if "geonorm triton" not in missing:  # else auto is the closed form anyway
        found.append(Candidate("geonorm closed compiled", make_step("closed", decay), compiled=True))
    found += [
        Candidate("geonorm textbook", make_step("reference", decay)),
        Candidate("geonorm textbook compiled", make_step("reference", decay), compiled=True),
        Candidate("add + rms_norm", add_norm, norm=True),
        Candidate("add + rms_norm, gains", add_norm_gains, norm=True, gains=True),
        Candidate("add + rms_norm compiled", add_norm, norm=True, compiled=True),
        Candidate("add + rms_norm, gains, compiled", add_norm_gains, norm=True, compiled=True, gains=True),
    ]
    for name, load in FUSED.items():
        try:
            forward = load()
            forward(*probe(device), torch.ones(64, device=device))
        except Exception as error:  # a library of others, or a GPU that is not there, may fail in any way
            missing[name] = why_missing(error)
        else:
            found.append(Candidate(name, forward, norm=True, gains=True))
    return found, missing


def why_missing(error: Exception) -> str:
    """The kind of an error and its cause."""
    return f"{type(error).__name__}: {cause(error)[:160]}"


def probe(device: torch.device) -> tuple[Tensor, Tensor]:
    """Enough to see whether a path runs at all."""
    x, u = torch.ones(2, 4, 64, device=device).unbind()
    return x, u


def liger() -> Forward:
    """Liger-Kernel's fused addition and RMSNorm (Triton)."""
    fused = import_module("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction

    def forward(x: Tensor, u: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        y, total = fused.apply(u, x, gains, EPS, 0.0, "llama", False)
        return total, y

    return forward


def flash_attn() -> Forward:
    """flash-attn's fused addition and RMSNorm (Triton)."""
    norm = import_module("flash_attn.ops.triton.layer_norm").rms_norm_fn

    def forward(x: Tensor, u: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        y, total = norm(u, gains, None, residual=x, eps=EPS, prenorm=True)
        return total, y

    return forward


def quack() -> Forward:
    """QuACK's fused addition and RMSNorm (CuTe)."""
    norm = import_module("quack").rmsnorm

    def forward(x: Tensor, u: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        y, total = norm(u, gains, residual=x, eps=EPS, prenorm=True)
        return total, y

    return forward


FUSED: dict[str, Callable[[], Forward]] = {"Liger": liger, "flash-attn": flash_attn, "QuACK": quack}
"""Fused kernels of others for the same place in Pre-Norm."""
