"""Settings of `geonorm bench`. No torch here: the command line reads this file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ..errors import ConfigError
from ..lab.clusters import within

CPU_SHAPES = ("4096x768", "4096x1024")
CUDA_SHAPES = ("4096x768", "32768x768", "32768x1024", "32768x2048", "16384x4096", "8192x8192", "4096x16384")
QUICK_SHAPES = ("256x768",)
QUICK_PAIRS = 7
"""A 95 % interval of a median needs 6 values at least."""


@dataclass(frozen=True)
class OpsBench:
    """The geodesic update and its peers, tensor by tensor: every candidate is compared with fp64 first, then all take
    turns. The peer is what Pre-Norm does at the same place, the residual addition and the next RMSNorm."""

    shapes: list[str] = field(default_factory=list)
    """ROWSxDIM, tokens by width, such as 4096x768; a list for the device when not given."""
    dtypes: list[Literal["fp32", "bf16", "fp16", "mixed"]] = field(default_factory=lambda: ["fp32", "bf16"])
    """mixed: stream in fp32, update in bf16, as in training with autocast."""
    modes: list[Literal["fwd", "bwd", "both"]] = field(default_factory=lambda: ["fwd", "bwd", "both"])
    """Forward pass, backward pass, or one after the other."""
    only: list[str] = field(default_factory=list)
    """Candidates whose name contains one of these words, and what they are compared with."""
    pairs: int = 41
    """Rounds in which every candidate is timed once."""
    threads: int = 1
    """CPU threads."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda."""
    quick: bool = False
    """One small shape and 7 rounds, to see that it works."""
    out: str | None = None
    """Directory for summary.json and figures/."""

    def __post_init__(self) -> None:
        for shape in self.shapes:
            rows_and_dim(shape)
        common(self.pairs, self.threads)
        for name in ("dtypes", "modes"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; leave it out for all")

    def sizes(self, cuda: bool) -> list[tuple[int, int]]:
        """(rows, dim) of each shape to measure."""
        return sizes(self.shapes, self.quick, cuda)

    @property
    def rounds(self) -> int:
        return min(self.pairs, QUICK_PAIRS) if self.quick else self.pairs


@dataclass(frozen=True)
class TrainBench:
    """A whole training step (forward, backward, clipping, AdamW) of the decoder, scheme beside scheme, eager and
    compiled. Tokens are random: their content does not change the time."""

    schemes: list[str] = field(default_factory=lambda: ["geonorm"])
    """Residual schemes, as in `geonorm schemes`."""
    baseline: str = "pre"
    """The scheme that ratios are to."""
    preset: str = "nano"
    """Size of the model: nano, nano-gpt2, mini, 125m, paper-125m, 350m, 1.3b, 7b, 70b."""
    batch_size: int = 16
    """Sequences per step."""
    context: int | None = None
    """Tokens of a sequence; the preset's when not given."""
    modes: list[Literal["eager", "compiled"]] = field(default_factory=lambda: ["eager", "compiled"])
    """compiled: torch.compile, block by block, and of the loss, as in training."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16 under autocast; weights, norms and the residual stream stay fp32."""
    llama: bool = False
    """Also transformers' Llama of the same shape, eager, in a plain loop."""
    pairs: int = 41
    """Rounds in which every program makes one step."""
    threads: int = 1
    """CPU threads."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda."""
    out: str | None = None
    """Directory for summary.json."""

    def __post_init__(self) -> None:
        common(self.pairs, self.threads)
        within("batch_size", self.batch_size, 1)
        if not self.schemes or not self.modes:
            raise ConfigError("bench train needs at least one scheme and one mode")


@dataclass(frozen=True)
class NormsBench:
    """LayerNorm against RMSNorm, torch's functions and this library's modules: every one is compared with fp64 first,
    then all take turns; and what share of a training step and of a decoding step a model's norms are."""

    shapes: list[str] = field(default_factory=list)
    """ROWSxDIM, tokens by width, such as 4096x768; a list for the device when not given."""
    dtypes: list[Literal["fp32", "bf16", "fp16"]] = field(default_factory=lambda: ["fp32", "bf16"])
    """Of what is normalised; gains and biases are fp32 in this library's modules, of this type in torch's functions."""
    passes: list[Literal["fwd", "bwd", "both"]] = field(default_factory=lambda: ["fwd", "bwd", "both"])
    """Forward pass, backward pass, or one after the other."""
    modes: list[Literal["eager", "compiled"]] = field(default_factory=lambda: ["eager", "compiled"])
    """compiled: torch.compile of each norm; block by block in a training step."""
    preset: str = "nano"
    """Size of the model whose steps are timed: nano, nano-gpt2, mini, 125m, paper-125m, 350m, 1.3b, 7b, 70b."""
    scheme: str = "pre(entry=embedding)"
    """Residual scheme of that model."""
    batch_size: int = 16
    """Sequences of a training step; one sequence is decoded."""
    pairs: int = 41
    """Rounds in which everything is timed once."""
    threads: int = 1
    """CPU threads."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda."""
    quick: bool = False
    """One small shape and 7 rounds, to see that it works."""
    out: str | None = None
    """Directory for summary.json and figures/."""

    def __post_init__(self) -> None:
        for shape in self.shapes:
            rows_and_dim(shape)
        common(self.pairs, self.threads)
        within("batch_size", self.batch_size, 1)
        for name in ("dtypes", "passes", "modes"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; leave it out for all")

    def sizes(self, cuda: bool) -> list[tuple[int, int]]:
        """(rows, dim) of each shape to measure."""
        return sizes(self.shapes, self.quick, cuda)

    @property
    def rounds(self) -> int:
        return min(self.pairs, QUICK_PAIRS) if self.quick else self.pairs


def sizes(shapes: list[str], quick: bool, cuda: bool) -> list[tuple[int, int]]:
    """Those asked for, or the usual ones of a device."""
    usual = QUICK_SHAPES if quick else CUDA_SHAPES if cuda else CPU_SHAPES
    return [rows_and_dim(shape) for shape in shapes or usual]


def common(pairs: int, threads: int) -> None:
    within("pairs", pairs, 6, 100_000)
    within("threads", threads, 1, 4096)


def rows_and_dim(shape: str) -> tuple[int, int]:
    """(4096, 768) of "4096x768"; ConfigError for anything else."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,6})", shape)
    if match is None:
        raise ConfigError(f"shape {shape!r} is not ROWSxDIM, two whole numbers such as 4096x768")
    return int(match[1]), int(match[2])
