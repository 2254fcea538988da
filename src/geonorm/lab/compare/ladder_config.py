"""Settings of a ladder, and the rule by which one integer, the depth, sets a size. No torch here: the command line
reads this file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Any

from ...errors import ConfigError, require
from ...models.config import preset
from ...settings import Positive, Range, to_dict
from .config import Grid

UNITS = {"k": 1e3, "M": 1e6, "B": 1e9}
MOST_TOKENS_PER_PARAMETER = 2000
"""A budget without a unit is in tokens for each parameter; a larger one is taken for a slip."""
DEEPEST = 1000
"""The most blocks: as many as DeepNet has layers (arXiv:2203.00555)."""


# The rule: what the depth sets. --model.width and others hold for all sizes.
WIDTH_PER_BLOCK = 16
"""Width of the stream, per block; hidden units in the proportion of the preset."""
HEAD_WIDTH = 16
"""Width of a head, so that heads = width / head."""
STEP_TOKENS_RATIO = 0.2
"""Tokens of a step, over the square root of all tokens, as critical batches grow (arXiv:2410.21676): 514 at 6.6M."""
LEAST_STEP_TOKENS = 512
"""No step has fewer tokens: below, a CPU is idle for most of it."""
LR_RATIO = 19.0
"""Learning rate times width (as in arXiv:2203.03466) times the square root of the steps: 6.7e-3 at width 128 and 490
steps, where a fit for pre had its minimum."""
HIGHEST_LR = 0.012
"""No rate is above this, however short the runs."""


@dataclass(frozen=True)
class Size:
    """One size of the ladder: the shape of the model, and how long, in what batches and at which rate it is trained."""

    depth: int
    width: int
    heads: int
    hidden: int
    batch_size: int
    steps: tuple[int, ...]
    """Steps of each budget, ascending."""
    lr: float

    @property
    def name(self) -> str:
        return f"d{self.depth}w{self.width}"


@dataclass(frozen=True)
class LadderConfig(Grid):
    """Trains schemes at several sizes and lengths, and ends in the effective
    speed-up of each scheme: how many times the tokens the first one needs for the same loss. One integer, the depth,
    sets width, heads, tokens, batch and rate. Finished runs are kept, so the same command goes on where it
    was stopped, and more depths, schemes, seeds or rates extend a ladder."""

    verb, noun = "ladder", "ladder"
    common = ("schemes", "depth", "budgets", "rates", "seeds", "data", "jobs", "out")
    examples = (
        "geonorm ladder --schemes pre geonorm --depth 3 4 6 --data my.txt --out runs/ladder",
        "geonorm ladder --schemes pre ./mine.py:Mine --depth 2 --budgets 1 2 --optim.schedule wsd --seeds 2",
    )

    schemes: list[str] = field(default_factory=lambda: ["pre", "geonorm"])
    """Residual schemes; the first is the baseline of every speed-up."""
    depth: list[Annotated[int, Range(1, DEEPEST)]] = field(default_factory=lambda: [3, 4, 6])
    """Blocks of each size, which set all else."""
    budgets: list[str] = field(default_factory=lambda: ["20"])
    """Tokens of a run: for each parameter (20), or in all (500k, 4M). Several share a prefix of training, which needs
    --optim.schedule wsd."""
    rates: list[Positive] = field(default_factory=lambda: [1.0])
    """Multiples of the rule's learning rate, all of them trained in full; a scheme is judged at its best."""
    out: str = "runs/ladder"
    """Directory of the ladder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("schemes", "depth", "rates"):
            require(getattr(self, name), f"--{name} is empty: a ladder needs at least one")
        require(to_dict(self.model)["layers"] is None, "--model.layers is what --depth sets: leave it out")
        tokens = [read_budget(text, 1) for text in self.budgets]
        require(
            tokens and len(set(tokens)) == len(tokens), "--budgets needs at least one number of tokens, and none twice"
        )
        require(
            len(tokens) == 1 or self.optim.schedule == "wsd",
            "several --budgets share a prefix of training: add --optim.schedule wsd",
        )

    def size(self, depth: int, count: Callable[[dict[str, Any]], int]) -> Size:
        """The size that the rule gives for a depth. count: the number of parameters of a model with these fields.
        ConfigError if a budget is less than a step."""
        like, model = preset(self.preset), to_dict(self.model)
        width = model["width"] or WIDTH_PER_BLOCK * depth
        heads = model["heads"] or max(1, width // HEAD_WIDTH)
        hidden = model["hidden"] or round(width * like.hidden / like.width)
        context = model["context"] or like.context
        parameters = count({"layers": depth, "width": width, "heads": heads, "hidden": hidden})
        tokens = sorted(read_budget(budget, parameters) for budget in self.budgets)
        batch = max(1, round(max(LEAST_STEP_TOKENS, STEP_TOKENS_RATIO * sqrt(tokens[-1])) / context))
        steps = [round(each / (batch * context)) for each in tokens]
        require(
            steps[0] >= 1 and len(set(steps)) == len(steps),
            f"--depth {depth}: batches of {batch} x {context} tokens make {steps} steps of the budgets: "
            "each budget needs a step, and no two the same number; give larger budgets",
        )
        lr = min(HIGHEST_LR, LR_RATIO / (width * sqrt(steps[-1])))
        return Size(depth, width, heads, hidden, batch, tuple(steps), lr)


def read_budget(text: str, parameters: int) -> float:
    """The tokens of a budget: a number without a unit is tokens for each parameter, one with a unit is the total."""
    unit = UNITS.get(text[-1:])
    try:
        tokens = float(text[:-1]) * unit if unit else float(text) * parameters
    except ValueError:
        tokens = 0.0
    if not unit and tokens > MOST_TOKENS_PER_PARAMETER * parameters:
        raise ConfigError(
            f"--budgets {text} would be so many tokens for each parameter, {MOST_TOKENS_PER_PARAMETER} at most; for "
            f"that many in all write {float(text) / 1e3:g}k"
        )
    require(0 < tokens < 1e18, f"--budgets takes tokens for each parameter (20) or in all (500k, 4M), got {text!r}")
    return tokens
