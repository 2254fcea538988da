"""Settings of `geonorm check-transfer`. No torch here: the command line reads this file."""

from dataclasses import dataclass, field
from typing import Annotated

from ..errors import require
from ..settings import Count, Range, Settings, check_out

HEAD_WIDTH = 16
"""Width of an attention head, so that heads = width / 16."""


@dataclass(frozen=True)
class TransferConfig(Settings):
    """How far a few optimizer steps turn the final state of an untrained decoder, over depth and over width. Theory has
    the best learning rate fall where the turn grows; in experiment 023 it did not."""

    common = ("schemes", "depths", "widths", "seeds", "out")
    examples = (
        "geonorm check-transfer --schemes geonorm peri --out runs/transfer",
        "geonorm check-transfer --schemes ./mine.py:Mine --depths 4 12 36 --widths 64",
    )

    schemes: list[str] = field(default_factory=lambda: ["geonorm"])
    """Residual schemes, as in `geonorm schemes`, also package.module:Name or ./file.py:Name."""
    depths: list[Count] = field(default_factory=lambda: [2, 4, 8, 16, 32, 64])
    """Blocks, at the width --width."""
    widths: list[Count] = field(default_factory=lambda: [32, 64, 128, 256, 512])
    """Widths, multiples of 16, at the depth --depth."""
    depth: Count = 4
    """Blocks of the base model, to which ratios are."""
    width: Count = 64
    """Width of the base model."""
    seeds: Annotated[int, Range(2)] = 3
    """Initial weights and random tokens, numbered from 0; intervals are over these."""
    lr: Annotated[float, Range(1e-7, 0.1)] = 1e-5
    """Rate of Adam, so small that the turn is proportional to it after one step."""
    out: str = "runs/transfer"
    """Directory for rows.jsonl, summary.json, report.html and figures; new, or one of this command."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for width in (self.width, *self.widths):
            require(
                width % HEAD_WIDTH == 0,
                f"a width must be a multiple of {HEAD_WIDTH}, the width of a head, got {width}",
            )
        check_out(self.out)

    @property
    def axes(self) -> dict[str, list[tuple[int, int]]]:
        """(depth, width) of the models along each axis, the base model among them."""
        return {
            "depth": [(depth, self.width) for depth in sorted({self.depth, *self.depths})],
            "width": [(self.depth, width) for width in sorted({self.width, *self.widths})],
        }
