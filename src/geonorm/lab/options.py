"""Groups of settings of a run: the optimizer, what is measured meanwhile, what survives a crash, where its numbers go,
how text becomes tokens. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from ..errors import ConfigError, unknown
from ..settings import Count, Natural, NotNegative, Positive, Range, Settings, Share, convert_value

RATED = ("embed", "position", "head", "hidden", "q", "k", "v", "o", "up", "gate", "down", "gain")
"""Roles that may have a learning rate of their own: what nn.roles has, as far as models of text have it."""
WIDTHLESS = ("embed", "position", "gain")
"""Roles whose best rate does not depend on the width: no sum over the width stands between them and the stream."""
LARGE = 0.1
"""A share of every matrix that no step should take: the default of a decay that the learning rate multiplies."""
Memory = Annotated[float, Range(0, 0.999999)]
"""Share of an average that it keeps in a step."""


@dataclass(frozen=True)
class Optim(Settings):
    """The optimizer and its schedule."""

    prefix = "optim."

    name: Literal["adamw", "muon"] | None = None
    """muon: orthogonalised momentum for matrices inside blocks, AdamW for the rest. When not given, that of the preset:
    muon for modern, adamw for all others."""
    weight_decay: NotNegative = 0.1
    """On matrices but not on embeddings, norms and scalars; decoupled."""
    independent: bool = False
    """Weight decay of a step is weight_decay times the schedule (arXiv:2309.14322: some 1e-4), not times the learning
    rate; 0.1 or more is refused."""
    betas: tuple[Memory, Memory] = (0.9, 0.95)
    """AdamW's averages."""
    eps: NotNegative = 1e-8
    """AdamW's epsilon."""
    clip: NotNegative = 1.0
    """Largest norm of the whole gradient; 0 switches clipping off."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """After warm-up: cosine to the floor, constant with a linear decay at the end (wsd), or constant."""
    warmup: Share = 0.1
    """Share of the steps in which the learning rate rises linearly."""
    warmup_steps: Natural | None = None
    """The same in steps, in place of the share."""
    cooldown: Share = 0.2
    """Share of the steps in which wsd decays."""
    floor: Share = 0.1
    """Last learning rate as a share of the highest."""
    rates: list[str] = field(default_factory=list)
    """Multipliers of the learning rate by role: embed=16 head=1. Roles: embed, position, head, q k v o up gate down,
    hidden (all of these), gain (norms, biases, numbers that a scheme learns). In a ladder those of embed, position and
    gain hold at the preset's width and grow with it, so that their rates stay while that of matrices falls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.multipliers) < len(self.rates):
            raise ConfigError("optim.rates names a role twice")
        if self.independent and self.weight_decay >= LARGE:
            raise ConfigError(
                f"optim.independent takes weight_decay, {self.weight_decay:g}, off every matrix in a step, whatever "
                "the rate: give a share for one step, say --optim.weight_decay 1e-4"
            )

    @property
    def multipliers(self) -> dict[str, float]:
        """Of the learning rate, by role. ConfigError for an unknown role or a rate that is not above 0."""
        multipliers: dict[str, float] = {}
        for word in self.rates:
            role, _, number = word.partition("=")
            if role not in RATED:
                raise ConfigError(unknown("role of optim.rates", role, RATED))
            name = f"optim.rates {role}"
            multipliers[role] = convert_value(name, convert_value(name, number, float, typed=True), Positive)
        return multipliers

    def at_width(self, ratio: float) -> Optim:
        """The same for a model `ratio` times as wide, whose learning rate is as many times lower: roles whose best rate
        does not depend on the width keep theirs."""
        multipliers = {role: rate * (ratio if role in WIDTHLESS else 1) for role, rate in self.multipliers.items()}
        return replace(self, rates=[f"{role}={rate:.6g}" for role, rate in multipliers.items()])

    def warmup_end(self, steps: int) -> int:
        """The last step of warm-up."""
        return round(self.warmup * steps) if self.warmup_steps is None else self.warmup_steps

    def trunk_end(self, steps: int) -> int:
        """The last step before wsd cools down: up to there a longer run is the same run."""
        return steps - max(1, round(self.cooldown * steps))

    def check_steps(self, steps: int) -> None:
        """ConfigError where warm-up does not end before what follows it: the rate would never be the one that is
        given."""
        end, what = (self.trunk_end(steps), "cool-down") if self.schedule == "wsd" else (steps, "end")
        if (warm := self.warmup_end(steps)) > end:
            raise ConfigError(
                f"warm-up of {warm} of {steps} steps goes beyond step {end}, the {what}: shorten --optim.warmup_steps "
                "or --optim.warmup, or train longer"
            )


@dataclass(frozen=True)
class Evaluation(Settings):
    """Measurements during training, on held-out text that never changes."""

    prefix = "evaluation."

    every: Count | None = None
    """Steps between evaluations; a third of the run when not given. The last step is always evaluated."""
    tokens: Count = 65536
    """Held-out tokens, spread evenly over the validation text; the whole of it where it is shorter."""
    whole: bool | None = None
    """The whole validation text, document by document, after the last step; when not given, where that costs little: it
    has at most a third of the tokens that the run trains on."""
    average: Share = 0.0
    """Share of the steps, the last ones, whose mean weights are evaluated too (val_loss_average); 0: none."""
    trace_tokens: Natural = 1024
    """Held-out tokens, spread like the others, on which the geometry of every site is measured; 0: no trace."""


@dataclass(frozen=True)
class Checkpoint(Settings):
    """What survives a crash."""

    prefix = "checkpoint."

    every: Count | None = None
    """Steps between checkpoints; a fifth of the run when not given. One is saved at the last step, and when ten minutes
    have passed without."""
    keep: Count = 2
    """Newest checkpoints kept; of a run under wsd also the one before the cool-down, where longer runs can begin."""


@dataclass(frozen=True)
class Log(Settings):
    """Where the numbers of a run go besides its directory."""

    prefix = "log."

    to: list[Literal["wandb", "trackio"]] = field(default_factory=list)
    """Trackers, each an extra of the package (pip install 'geonorm[wandb]'); none by default. Their project is
    $WANDB_PROJECT, or geonorm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.to)) < len(self.to):
            raise ConfigError("--log.to names a tracker twice")


@dataclass(frozen=True)
class Tokens(Settings):
    """How text becomes tokens."""

    prefix = "tokens."

    tokenizer: str = "bpe"
    """byte, bpe (trained on the training text, as many tokens as model.vocab_size), or a tokenizer.json. Tokens are
    kept in $GEONORM_CACHE, or ~/.cache/geonorm."""
