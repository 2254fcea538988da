"""What is measured beside what, and the truth each is compared with.

Every candidate takes the stream x and the update u, both (rows, dim), and returns what the model goes on with: the new
stream; the new stream and what the next sub-layer reads of it ("read twice"; "read through a norm" is its RMSNorm with
gains, as under `input=norm`); for Pre-Norm, the sum and its RMSNorm.
Ratios are to Pre-Norm without gains, its fastest form. With gains, as models have them and the fused kernels of others
always, a candidate takes them as a third argument and gives their gradient, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..norms import RMSNorm
from ..ops import AngleMap, geodesic_step_read, geodesic_update

EPS = 1e-6
MAX_ANGLE = pi / 4
Tensors = tuple[Tensor, ...]
Forward = Callable[..., Tensors]
Kind = Literal["step", "read", "through", "norm"]
"""The geodesic update; the same, read by the next sub-layer; read through an RMSNorm; Pre-Norm's sum and RMSNorm."""
DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "mixed": (torch.float32, torch.bfloat16),
}
"""Of the stream and of the update."""
NORM_TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float16: (5e-3, 1e-2), torch.bfloat16: (2e-2, 4e-2)}
"""Largest error of a row of a norm's output and gradient, relative to the row's length: sums may be rounded to the
dtype on the way."""
STEP_TOLERANCE = {torch.float32: (1e-6, 5e-6), torch.float16: (5e-4, 2e-3), torch.bfloat16: (4e-3, 1e-2)}
"""Of the update: in half precision little more than the rounding of what is returned."""
PRE = "add + rms_norm"
GAINS = f"{PRE}, gains"


def draw_inputs(rows: int, dim: int, dtype: str, device: torch.device) -> Tensors:
    """Stream x, update u and two gradients (of the stream, of what the branch reads), each (rows, dim). Updates of
    0.03 to 10 times the stream's length: about half of the rows are clamped."""
    stream, update = DTYPES[dtype]
    random = torch.Generator(device).manual_seed(0)
    x, u, first, second = torch.randn(4, rows, dim, generator=random, device=device).unbind()
    u = u * 10 ** (2.5 * torch.rand(rows, 1, generator=random, device=device) - 1.5)
    return x.to(stream), u.to(update), first.to(stream), second.to(update)


@dataclass(frozen=True)
class Candidate:
    """A way to compute one of the functions; its tensors are those of `draw_inputs`."""

    name: str
    forward: Forward
    kind: Kind = "step"
    gains: bool = False
    compiled: bool = False

    def arguments(self, tensors: Tensors) -> dict[str, Tensor]:
        """x, u and gains of one where it has them."""
        x, u = tensors[0].detach(), tensors[1].detach()
        gains = {"gains": torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)} if self.gains else {}
        return {name: tensor.requires_grad_() for name, tensor in ({"x": x, "u": u} | gains).items()}

    def gradients(self, tensors: Tensors) -> Tensors:
        return tensors[2:3] if self.kind == "step" else tensors[2:]

    def truth(self, *arguments: Tensor) -> Tensors:
        if self.kind == "norm":
            return add_norm(*arguments)
        decay = torch.tensor(0.5, dtype=torch.float64, device=arguments[0].device)
        return make_step("reference", decay, self.kind)(*arguments)

    def limits(self, outputs: Sequence[Tensor], arguments: Mapping[str, Tensor]) -> dict[str, float]:
        tolerance = NORM_TOLERANCE if self.kind == "norm" else STEP_TOLERANCE
        (_, dx), (_, du) = tolerance[arguments["x"].dtype], tolerance[arguments["u"].dtype]
        roundings = 2 if self.kind == "through" else 1  # its norm reads a rounded x'
        return {"out": roundings * tolerance[outputs[-1].dtype][0], "dx": dx, "du": du, "dgains": du}

    def bytes(self, mode: str, tensors: Tensors) -> int:
        """Every input read once, every output written once, row scalars and gains left out. Equal results of one type
        share memory."""
        stream, update = (tensor.element_size() for tensor in tensors[:2])
        apart = update if update != stream else 0
        forward, backward = {
            "step": (2 * stream + update, 3 * stream + 2 * update),  # x, u -> x'; dx', x, u -> dx, du
            "read": (2 * stream + update + apart, 3 * stream + 3 * update),  # x, u -> x', y; dx', dy, x, u -> dx, du
            "through": (2 * stream + 2 * update, 3 * stream + 3 * update),
            "norm": (2 * stream + 2 * update, 3 * stream + update + apart),  # x, u -> sum, y; dsum, dy, sum -> dx, du
        }[self.kind]
        return tensors[0].numel() * {"fwd": forward, "bwd": backward, "both": forward + backward}[mode]


def make_step(backend: str, decay: Tensor, kind: Kind = "step") -> Forward:
    """The geodesic update on one path, with a second result, in the dtype of the update, where it is read."""
    angles = AngleMap(post=decay, max_angle=MAX_ANGLE)
    norm = RMSNorm(0, gains=False, eps=EPS) if kind == "through" else None

    def forward(x: Tensor, u: Tensor, gains: Tensor | None = None) -> Tensors:
        if kind == "step":
            return (geodesic_update(x, u, decay=decay, max_angle=MAX_ANGLE, backend=backend),)
        if norm is not None:
            norm.dim, norm.weight = x.shape[-1], gains  # type: ignore[assignment]  # a leaf of the caller's
        return geodesic_step_read(x, u, angles, u.dtype, backend, norm)

    return forward


def add_norm(x: Tensor, u: Tensor, gains: Tensor | None = None) -> Tensors:
    """What Pre-Norm does between two sub-layers, with gains as models have them."""
    total = x + u
    return total, F.rms_norm(total, (total.shape[-1],), gains, eps=EPS).to(u.dtype)


def candidates(device: torch.device) -> list[Candidate]:
    """Everything that is measured on a device."""
    decay = torch.tensor(0.5, device=device)  # a tensor, as a layer passes it
    auto, through = make_step("auto", decay), make_step("auto", decay, "through")
    textbook = make_step("reference", decay)
    every = [
        Candidate("geonorm", auto),
        Candidate("geonorm, read twice", make_step("auto", decay, "read"), "read"),
        Candidate("geonorm, read through a norm", through, "through", gains=True),
        Candidate("geonorm closed", make_step("closed", decay)),
        Candidate("geonorm compiled", auto, compiled=True),
        Candidate("geonorm compiled, read through a norm", through, "through", gains=True, compiled=True),
        Candidate("geonorm textbook", textbook),
        Candidate("geonorm textbook compiled", textbook, compiled=True),
        Candidate(PRE, add_norm, "norm"),
        Candidate(GAINS, add_norm, "norm", gains=True),
        Candidate(f"{PRE} compiled", add_norm, "norm", compiled=True),
        Candidate(f"{GAINS}, compiled", add_norm, "norm", gains=True, compiled=True),
    ]
    if device.type == "cuda":  # elsewhere auto is the closed form
        every.append(Candidate("geonorm closed compiled", make_step("closed", decay), compiled=True))
    return every
