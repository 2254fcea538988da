"""Settings of `geonorm bench`. No torch here: the command line reads this file."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Literal

from ..errors import ConfigError
from ..settings import Count, Range, Settings

CPU_SHAPES = ("4096x768", "4096x1024")
CUDA_SHAPES = ("4096x768", "32768x768", "32768x1024", "32768x2048", "16384x4096", "8192x8192", "4096x16384")
QUICK_SHAPES = ("256x768",)
QUICK_PAIRS = 7
"""A 95 % interval of a median needs 6 values at least."""


@dataclass(frozen=True, kw_only=True)
class Timing(Settings):
    """What every benchmark takes."""

    pairs: Annotated[int, Range(6, 100_000)] = 41
    """Rounds in which everything is timed once."""
    threads: Annotated[int, Range(1, 4096)] = 1
    """CPU threads."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda."""
    out: str | None = None
    """Directory for summary.json."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in fields(self):
            usual = [] if setting.default_factory is MISSING else setting.default_factory()
            if usual != [] and getattr(self, setting.name) == []:
                raise ConfigError(f"{setting.name} is empty; leave it out for the usual ones")


@dataclass(frozen=True, kw_only=True)
class OpsBench(Timing):
    """The geodesic update and its peers, tensor by tensor: every candidate is compared with fp64 first, then all take
    turns. The peer is what Pre-Norm does at the same place, the residual addition and the next RMSNorm."""

    examples = (
        "geonorm bench ops --quick",
        "geonorm bench ops --shapes 4096x768 --dtypes bf16 --device cuda --out runs/ops",
    )

    shapes: list[str] = field(default_factory=list)
    """ROWSxDIM, tokens by width, such as 4096x768; a list for the device when not given."""
    dtypes: list[Literal["fp32", "bf16", "fp16", "mixed"]] = field(default_factory=lambda: ["fp32", "bf16"])
    """mixed: stream in fp32, update in bf16, as in training with autocast."""
    modes: list[Literal["fwd", "bwd", "both"]] = field(default_factory=lambda: ["fwd", "bwd", "both"])
    """Forward pass, backward pass, or one after the other."""
    only: list[str] = field(default_factory=list)
    """Candidates whose name contains one of these words, and what they are compared with."""
    quick: bool = False
    """One small shape and 7 rounds, to see that it works."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for shape in self.shapes:
            rows_and_dim(shape)

    def sizes(self, cuda: bool) -> list[tuple[int, int]]:
        """(rows, dim) of each shape to measure."""
        usual = QUICK_SHAPES if self.quick else CUDA_SHAPES if cuda else CPU_SHAPES
        return [rows_and_dim(shape) for shape in self.shapes or usual]

    @property
    def rounds(self) -> int:
        return min(self.pairs, QUICK_PAIRS) if self.quick else self.pairs


@dataclass(frozen=True, kw_only=True)
class TrainBench(Timing):
    """A whole training step (forward, backward, clipping, AdamW) of the decoder, scheme beside scheme, eager and
    compiled. Tokens are random: their content does not change the time."""

    examples = (
        "geonorm bench train --schemes geonorm peri --preset nano",
        "geonorm bench train --preset 125m --dtype bf16 --device cuda --modes compiled",
    )

    schemes: list[str] = field(default_factory=lambda: ["geonorm"])
    """Residual schemes, as in `geonorm schemes`."""
    baseline: str = "pre"
    """The scheme that ratios are to."""
    preset: str = "nano"
    """Size of the model: nano, nano-gpt2, nano-bert, modern, mini, 125m, paper-125m, bert-base, modern-d12, 350m, 1.3b,
    7b, 70b."""
    batch_size: Count = 16
    """Sequences per step."""
    context: int | None = None
    """Tokens of a sequence; the preset's when not given."""
    modes: list[Literal["eager", "compiled"]] = field(default_factory=lambda: ["eager", "compiled"])
    """compiled: torch.compile as in training, block by block and of the loss; a small model on one CPU thread whole."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16 under autocast; weights, norms and the residual stream stay fp32."""
    llama: bool = False
    """Also transformers' Llama of the same shape, eager, in a plain loop."""


def rows_and_dim(shape: str) -> tuple[int, int]:
    """(4096, 768) of "4096x768"; ConfigError for anything else."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,6})", shape)
    if match is None:
        raise ConfigError(f"shape {shape!r} is not ROWSxDIM, two whole numbers such as 4096x768")
    return int(match[1]), int(match[2])
