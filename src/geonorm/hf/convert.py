"""A trained Pre-Norm model becomes one under another scheme: `conversion = geonorm.hf.convert(model, "geonorm")`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import ConfigError, unknown
from ..residual import Residual
from ..schemes import Morph, Pre, Scheme, parse, settle
from ..sites.watch import stacks_of
from .apply import Report, apply, check_model, restore
from .block import norm_in

WAYS = ("abrupt", "match", "gradual")
SOURCE = Pre(entry="embedding")
"""What a Pre-Norm family is."""


def source_of(model: Any) -> Pre:
    """What a model is; one of a family may lack the norm at the end (the smallest OPT)."""
    ended = all(stack.exit is not None for stack, _ in stacks_of(model))
    return SOURCE if ended else replace(SOURCE, final="none")


@dataclass
class Conversion:
    """A model on its way. Train it (with `geonorm.hf.Trainer`, or a loop of your own that calls
    `geonorm.schemes.advance(model)` after each step), then call `finish`."""

    model: Any = field(repr=False)
    target: str
    way: str
    report: Report
    """What was changed to begin with."""

    def finish(self) -> Any:
        """The model, in place, under the target, of the type that `apply` makes. ConfigError before its way has come to
        its end."""
        if self.way == "gradual" and self.model.config.scheme != self.target:
            settle(self.model)
        return self.model

    def undo(self) -> None:
        """Gives the model its Pre-Norm back. Weights that were trained meanwhile stay."""
        restore(self.model)


def convert(
    model: Any,
    scheme: str | Scheme,
    way: Literal["abrupt", "match", "gradual"] = "gradual",
    steps: int = 1000,
    course: Literal["global", "layers"] = "global",
    probe: Any = None,
) -> Conversion:
    """Sets a Pre-Norm model of a family that `apply` knows on its way to a scheme, in place.

    way: gradual, `morph(pre(entry=embedding), scheme)`, begins with the model's own logits and moves over `steps`
    optimizer steps, all blocks at once or (course=layers) one after the other; abrupt is `apply`; match is
    `apply(init="match", probe=probe)`. Raises ConfigError, one line, for a model that is not Pre-Norm and where no way
    leads to the scheme; the model is then as it was.
    """
    target = parse(scheme)
    if way not in WAYS:
        raise ConfigError(unknown("way", way, WAYS))
    Morph(SOURCE, SOURCE, steps, course)  # which checks both, also where the way needs neither
    if probe is not None and way != "match":
        raise ConfigError(f'a probe is what way="match" fits on: leave it out of the way {way}, or say way="match"')
    check_model(model)
    check_pre_norm(model)
    if way != "gradual":
        report = apply(model, target, init="match" if way == "match" else "keep", probe=probe)
        return Conversion(model, str(target), way, report)
    report = apply(model, Morph(source_of(model), target, steps, course))
    if any(split_gains(module) for module in model.modules()):
        family = model.config.stock_type
        restore(model)
        raise ConfigError(
            f"{family} has several norms before branches side by side, which {target} does not: use the way match"
        )
    return Conversion(model, str(target), way, report)


def check_pre_norm(model: Any) -> None:
    placements = {place.placement for stack, _ in stacks_of(model) for place in stack.sublayers}
    if placements != {"pre"}:
        found = " and ".join(sorted(placements))
        raise ConfigError(f"{type(model).__name__} is not Pre-Norm but {found}: convert begins with a Pre-Norm model")


def split_gains(module: Any) -> bool:
    """Whether a site has gains behind one common norm that the target does not have."""
    if not isinstance(module, Residual) or not isinstance(module.scheme, Morph):
        return False
    way: Any = module.own.progress
    return (
        norm_in(module.own, "input") is not None
        and "input" not in way.target
        and any(
            chain.gains is not None
            for chain in module.branch.chains  # type: ignore[union-attr]
        )
    )
