"""Rows of a ladder's results.json, as typed records. No torch here."""

from dataclasses import dataclass

from .records import ComparisonRow, Record


@dataclass(kw_only=True)
class LadderPoint(ComparisonRow):
    """A scheme at a size and a budget: a row of `points` in a ladder's results.json. `parameters` are the
    baseline's."""

    size: str
    tokens: int
    parameters: int
    compute: int
    """6 x parameters x tokens in FLOP, without those that are only looked up."""
    embedding: int
    own_parameters: int | None
    """Of the scheme itself."""


@dataclass(kw_only=True)
class SpeedupRow(Record):
    """How many times the tokens (along sizes: the compute) the baseline needs for the loss of a scheme, at the largest
    budget of a size."""

    scheme: str
    size: str
    parameters: int | None
    tokens: int
    compute: int
    baseline: str
    along: str
    """tokens or compute."""
    ln: list[float]
    """Logarithm of the speed-up of each seed."""
    n: int
    bound: str | None
    """> or <, where only a `limit` of the speed-up is known."""
    limit: float | None
    problem: str | None
    """Why there is neither."""
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_p: float | None
    speedup_scatter: float | None
    """How many times as far its seeds scatter as those of the other rows, where a test sees that."""
    speedup_p_holm: float | None


@dataclass(kw_only=True)
class TrendRow(Record):
    """Nats by which the difference to the baseline grows in a decade of tokens, compute or parameters."""

    scheme: str
    baseline: str
    along: str
    size: str
    seeds: list[float]
    """The slope of each seed."""
    n: int
    slope: float | None
    slope_low: float | None
    slope_high: float | None
    slope_p: float | None
    slope_scatter: float | None
    slope_p_holm: float | None
