"""RoPE for texts longer than those of training: which rotations are slowed, and by how much.

A rule is a small configuration and its text, `yarn(factor=4, original=2048)`. The frequencies are, operation for
operation, those of transformers, so that what was trained there goes on here. No torch here, only methods of tensors:
the command line reads this file.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, field, fields
from math import ceil, floor, log, pi, sqrt
from typing import Annotated, Any

from ..errors import ConfigError, unknown
from ..settings import Count, Positive, Range, Settings, from_dict

Factor = Annotated[float, Range(1)]


@dataclass(frozen=True)
class RopeScaling(Settings):
    """factor: how many times longer than `original` texts may be; original: tokens of a training sequence, the model's
    context when not given."""

    prefix = "model.rope_scaling."
    least = 2
    """Rotated dimensions of a head that it needs."""

    factor: Factor
    windows: bool = field(default=True, kw_only=True)
    """Whether blocks that see a window alone are slowed, too (OLMo 3: not)."""

    def frequencies(self, exponents: Any, theta: float, context: int, length: Any) -> Any:
        """Radians a token of each pair of dimensions, shape and dtype of `exponents`, which are 0, 2/dim, 4/dim, ...

        context: the model's; length: tokens so far, a tensor of one whole number."""
        raise NotImplementedError

    def sharpness(self) -> float:
        """Factor on cos and sin, so on queries and keys."""
        return 1.0

    def renews(self, past: int, tokens: int) -> bool:
        """Whether a text grown from `past` to `tokens` tokens turns all of them by other frequencies, so that a cache
        of those is begun anew."""
        return False

    def fit(self, dim: int, theta: float) -> None:
        """ConfigError where a head has not the rotated dimensions, or theta not the size, that the rule is for."""
        if dim < self.least:
            raise ConfigError(f"model.rope_scaling {self} needs at least {self.least} rotated dimensions of a head")

    def __str__(self) -> str:
        """The text that `read_scaling` reads."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"{rule_name(self)}({', '.join(f'{name}={write_value(value)}' for name, value in given.items())})"


@dataclass(frozen=True)
class Linear(RopeScaling):
    """Every rotation `factor` times slower: position interpolation (arXiv:2306.15595)."""

    def frequencies(self, exponents: Any, theta: float, context: int, length: Any) -> Any:
        return unscaled_frequencies(theta, exponents) / self.factor


@dataclass(frozen=True)
class Dynamic(RopeScaling):
    """A larger base, the longer the text beyond the model's context: "dynamic NTK". With a cache, keys keep the
    rotation of the length at which they were computed, as in transformers."""

    least = 4

    def frequencies(self, exponents: Any, theta: float, context: int, length: Any) -> Any:
        dim = 2 * len(exponents)
        stretch = self.factor * length.clamp(min=context) / context - (self.factor - 1)
        return unscaled_frequencies(theta * stretch ** (dim / (dim - 2)), exponents)


@dataclass(frozen=True)
class Yarn(RopeScaling):
    """Slow rotations are interpolated, fast ones kept, with a ramp between, and attention is sharpened
    (arXiv:2309.00071)."""

    original: Count | None = None
    beta_fast: Positive = 32.0
    """Turns in `original` tokens from which on a rotation is kept."""
    beta_slow: Positive = 1.0
    """Turns up to which it is slowed by the whole factor."""
    attention_factor: Positive | None = None
    """Factor on queries and keys; 0.1 ln(factor) + 1 when not given."""
    truncate: bool = True
    """Whether the ends of the ramp are whole numbers of pairs."""

    def fit(self, dim: int, theta: float) -> None:
        super().fit(dim, theta)
        if theta <= 1:
            raise ConfigError(f"model.rope_scaling {self} needs model.rope_theta above 1, not {theta:g}")

    def frequencies(self, exponents: Any, theta: float, context: int, length: Any) -> Any:
        dim, powers = 2 * len(exponents), theta**exponents

        def pair_at(turns: float) -> float:
            """The pair that turns so often in `original` tokens."""
            return dim * log((self.original or context) / (turns * 2 * pi)) / (2 * log(theta))

        low, high = pair_at(self.beta_fast), pair_at(self.beta_slow)
        low, high = (floor(low), ceil(high)) if self.truncate else (low, high)
        low, high = max(low, 0), min(high, dim - 1)
        numbers = exponents.new_ones(dim // 2).cumsum(0) - 1
        kept = 1 - ((numbers - low) / (high + 0.001 * (low == high) - low)).clamp(0, 1)
        return 1.0 / (self.factor * powers) * (1 - kept) + 1.0 / powers * kept

    def sharpness(self) -> float:
        return 0.1 * log(self.factor) + 1.0 if self.attention_factor is None else self.attention_factor


@dataclass(frozen=True)
class Llama3(RopeScaling):
    """Llama 3.1's: rotations slower than `low_freq_factor` turns in `original` tokens are slowed by the whole factor,
    those faster than `high_freq_factor` turns kept."""

    original: Count | None = None
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                f"{self.prefix}high_freq_factor must be above low_freq_factor {self.low_freq_factor:g}, got "
                f"{self.high_freq_factor:g}"
            )

    def frequencies(self, exponents: Any, theta: float, context: int, length: Any) -> Any:
        original, low, high = self.original or context, self.low_freq_factor, self.high_freq_factor
        kept = unscaled_frequencies(theta, exponents)
        wavelength = 2 * pi / kept
        slowed = (kept / self.factor).where(wavelength > original / low, kept)
        share = (original / wavelength - low) / (high - low)
        between = ~(wavelength < original / high) * ~(wavelength > original / low)
        return ((1 - share) * slowed / self.factor + share * slowed).where(between, slowed)


@dataclass(frozen=True)
class LongRope(RopeScaling):
    """Every rotation slowed by a number of its own, found by search, of which there are two sets: one for texts up to
    `original` tokens, one for longer ones, with which Phi-3's go on (arXiv:2402.13753)."""

    short_factor: list[Positive]
    """How many times slower each pair of dimensions turns in texts up to `original` tokens."""
    long_factor: list[Positive]
    """The same in longer ones."""
    original: Annotated[int, Range(2)]
    attention_factor: Positive | None = None
    """Factor on queries and keys; sqrt(1 + ln(factor) / ln(original)) when not given."""

    def frequencies(self, exponents: Any, theta: float, context: int, length: Any) -> Any:
        short, long = exponents.new_tensor(self.short_factor), exponents.new_tensor(self.long_factor)
        return 1.0 / (long.where(length > self.original, short) * theta**exponents)

    def sharpness(self) -> float:
        usual = sqrt(1 + log(self.factor) / log(self.original))
        return usual if self.attention_factor is None else self.attention_factor

    def renews(self, past: int, tokens: int) -> bool:
        return 0 < past <= self.original < tokens

    def fit(self, dim: int, theta: float) -> None:
        super().fit(dim, theta)
        for name in ("short_factor", "long_factor"):
            if (given := len(getattr(self, name))) != dim // 2:
                raise ConfigError(
                    f"{self.prefix}{name} has {given} numbers, and a head has {dim // 2} pairs of rotated dimensions"
                )


KINDS: dict[str, type[RopeScaling]] = {
    "linear": Linear, "dynamic": Dynamic, "yarn": Yarn, "llama3": Llama3, "longrope": LongRope,
}  # fmt: skip
EXAMPLE = {"factor": "4", "short_factor": "1 1.1", "long_factor": "1.5 8", "original": "2048"}
"""Fields that have to be given, as a person writes them."""


def unscaled_frequencies(theta: Any, exponents: Any) -> Any:
    """Frequencies without a rule: 1 / theta^e and not theta^-e, to the last bit what transformers computes."""
    return 1.0 / theta**exponents


def write_value(value: Any) -> str:
    """A field as `read_scaling` reads it: numbers of a list with blanks between."""
    if isinstance(value, list):
        return " ".join(map(write_value, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:.15g}"


def rule_name(rule: RopeScaling) -> str:
    return next(name for name, kind in KINDS.items() if type(rule) is kind)


def read_scaling(text: str) -> RopeScaling:
    """The rule of a text. ConfigError names what cannot be read, and the nearest rule or field."""
    match = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text)
    parts = [part.split("=") for part in match[2].split(",") if part.strip()] if match else []
    if match is None or any(len(part) != 2 for part in parts):
        raise ConfigError(f"cannot read model.rope_scaling {text!r}: write it as yarn(factor=4, original=2048)")
    values = {key.strip(): value.split() for key, value in parts}
    if len(values) < len(parts):
        raise ConfigError(f"model.rope_scaling {text!r} gives a field twice")
    return make_scaling(match[1], {key: value if len(value) > 1 else "".join(value) for key, value in values.items()})


def make_scaling(kind: str, values: dict[str, Any]) -> RopeScaling:
    """The rule of that name with those fields, as a person may have typed them."""
    if kind not in KINDS:
        raise ConfigError(unknown("model.rope_scaling", kind, KINDS))
    due = [f.name for f in fields(KINDS[kind]) if f.default is MISSING]
    for name in due:
        if name not in values:
            example = ", ".join(f"{each}={EXAMPLE[each]}" for each in due)
            article = "a " if name == "factor" else ""
            raise ConfigError(f"model.rope_scaling {kind} needs {article}{name}: {kind}({example})")
    rule: RopeScaling = from_dict(KINDS[kind], values, RopeScaling.prefix, typed=True)
    return rule
