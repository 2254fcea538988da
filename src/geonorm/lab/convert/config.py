"""Settings of `geonorm convert`. No torch here: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ...errors import ConfigError
from ...settings import Count, NotNegative, Range, Settings, Share
from ..config import MAX_SEED, Many, Runtime, directory
from ..options import Checkpoint, Evaluation


@dataclass(frozen=True)
class ConvertConfig(Settings):
    """Makes a trained Pre-Norm model into one under another scheme and trains it for a number of tokens. The model that
    it begins with is only read. The same command goes on where it was stopped; to undo it, remove --out."""

    words = ("model",)
    common = ("to", "data", "tokens", "way", "course", "distill", "lr", "batch_size", "seed", "out")
    examples = (
        "geonorm convert runs/pre --to geonorm --tokens 1000000 --out runs/converted",
        "geonorm convert my-llama --to geonorm --data my.txt --tokens 1e7 --course layers --out my-geonorm",
    )

    model: str
    """Run directory, folder of a comparison (with --scheme), model folder, or a name on the Hugging Face hub."""
    to: str
    """Residual scheme that it becomes."""
    tokens: Annotated[float, Range(1), Range(1, 2**53)]
    """Tokens to train on, rounded to whole steps."""
    data: str | None = None
    """Text, as for train; that of the run when not given."""
    way: Literal["gradual", "match", "abrupt"] = "gradual"
    """gradual: begins with the model's own logits and moves to the scheme while it trains; match: begins under the
    scheme with gains fitted to be near; abrupt: begins under the scheme with the weights as they are."""
    course: Literal["global", "layers"] = "global"
    """Of the gradual way: every block at once by half a cosine, or one block after the other."""
    share: Annotated[float, Range(1e-6, 1)] = 0.5
    """Share of the steps in which the gradual way moves; the rest trains under the scheme itself."""
    distill: Share = 0.0
    """Share of the loss that is the divergence from the logits of the model it begins with, in place of the text."""
    lr: NotNegative | None = None
    """Highest learning rate; when not given that of the run, and 1e-4 for Hugging Face models."""
    batch_size: Many | None = None
    """Sequences per step; when not given those of the run, and 4 for Hugging Face models."""
    context: Count | None = None
    """Tokens of a sequence, for Hugging Face models; their own context, but at most 2048, when not given."""
    seed: Annotated[int, Range(0, MAX_SEED)] = 0
    """Seed of the data order."""
    out: str = "runs/convert"
    """Directory of the result: a run for a run, a model folder for a Hugging Face model."""
    scheme: str | None = None
    """With the folder of a comparison: its best finished run of this scheme."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    runtime: Runtime = field(default_factory=Runtime)

    def __post_init__(self) -> None:
        super().__post_init__()
        directory(self.out)
        for name in ("course", "share"):
            if self.way != "gradual" and getattr(self, name) != getattr(type(self), name):
                raise ConfigError(f"--{name} is of the gradual way: leave it out with --way {self.way}")
        if self.evaluation.tasks:
            raise ConfigError("convert asks no tasks: leave --evaluation.tasks out, and use geonorm eval on --out")
