"""Settings of `geonorm bench`. No torch here: the command line reads this file."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ..errors import ConfigError
from ..settings import Count, Range, Settings

CPU_SHAPES = ("4096x768", "4096x1024")
CUDA_SHAPES = ("4096x768", "32768x768", "32768x1024", "32768x2048", "16384x4096", "8192x8192", "4096x16384")


@dataclass(frozen=True, kw_only=True)
class Timing(Settings):
    """What every benchmark takes."""

    pairs: Annotated[int, Range(6, 100_000)] = 41
    """Rounds in which everything is timed once; a 95 % interval of a median needs 6 at least."""
    threads: Annotated[int, Range(1, 4096)] = 1
    """CPU threads."""
    device: str = "auto"
    """auto (an NVIDIA GPU if there is one), cpu, cuda."""
    out: str | None = None
    """Directory for summary.json."""


@dataclass(frozen=True, kw_only=True)
class OpsBench(Timing):
    """The geodesic update and its peers, tensor by tensor: every candidate is compared with fp64 first, then all take
    turns. The peer is what Pre-Norm does at the same place, the residual addition and the next RMSNorm."""

    examples = (
        "geonorm bench ops --shapes 256x768 --pairs 7",
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sizes()

    def sizes(self, usual: tuple[str, ...] = CPU_SHAPES) -> list[tuple[int, int]]:
        """(rows, dim) of each shape to measure: (4096, 768) of "4096x768"; ConfigError for anything else."""
        sizes = []
        for shape in self.shapes or usual:
            match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,6})", shape)
            if match is None:
                raise ConfigError(f"shape {shape!r} is not ROWSxDIM, two whole numbers such as 4096x768")
            sizes.append((int(match[1]), int(match[2])))
        return sizes


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
