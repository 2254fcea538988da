"""Groups of settings of a run: the optimizer, what is measured meanwhile, what survives a crash. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..errors import ConfigError
from .compare.clusters import within

Matrix = Literal["q", "k", "v", "o", "up", "gate", "down"]


@dataclass(frozen=True)
class Optim:
    """The optimizer and its schedule."""

    name: Literal["adamw", "muon", "sgd"] = "adamw"
    """muon: orthogonalised momentum for matrices inside blocks, AdamW for the rest; sgd: with momentum."""
    weight_decay: float = 0.1
    """On matrices but not on embeddings, norms and scalars; decoupled, for sgd a term of the gradient."""
    independent: bool = False
    """Weight decay of a step is weight_decay times the schedule (arXiv:2309.14322), not times the learning rate."""
    momentum: float = 0.9
    """SGD's."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averages."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    clip: float = 1.0
    """Largest norm of the whole gradient; 0 switches clipping off."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """After warm-up: cosine to the floor, constant with a linear decay at the end (wsd), or constant."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises linearly."""
    warmup_steps: int | None = None
    """The same in steps, in place of the share."""
    cooldown: float = 0.2
    """Share of the steps in which wsd decays."""
    floor: float = 0.1
    """Last learning rate as a share of the highest."""
    hold_norms: list[Matrix] = field(default_factory=list)
    """Matrices, by what they are for (o down ...), that are put back to their initial norm after each step."""

    def __post_init__(self) -> None:
        for name in ("warmup", "cooldown", "floor"):
            within(f"optim.{name}", getattr(self, name), 0, 1)
        for name in ("weight_decay", "clip", "eps"):
            within(f"optim.{name}", getattr(self, name), 0)
        within("optim.momentum", self.momentum, 0, 0.999999)
        for beta in self.betas:
            within("optim.betas", beta, 0, 0.999999)
        if self.warmup_steps is not None:
            within("optim.warmup_steps", self.warmup_steps, 0)
        if self.independent and self.name == "sgd":
            raise ConfigError("optim.independent needs a decoupled weight decay: --optim.name adamw or muon")


@dataclass(frozen=True)
class Evaluation:
    """Measurements during training, on held-out text that never changes."""

    every: int | None = None
    """Steps between evaluations; a third of the run when not given. The last step is always evaluated."""
    tokens: int = 65536
    """Held-out tokens, spread evenly over the validation text; the whole of it where it is shorter."""
    whole: bool | None = None
    """The whole validation text, document by document, after the last step; when not given, where that costs little: it
    has at most a third of the tokens that the run trains on."""
    average: float = 0.0
    """Share of the steps, the last ones, whose mean weights are evaluated too (val_loss_average); 0: none."""
    trace_tokens: int = 1024
    """Held-out tokens, spread like the others, on which the geometry of every site is measured; 0: no trace."""
    tasks: list[str] = field(default_factory=list)
    """Tasks as for `geonorm eval`, asked while the model trains; none by default."""
    task_every: int | None = None
    """Steps between them; only after the last step when not given."""
    task_limit: int | None = None
    """Most questions of each task; all when not given."""

    def __post_init__(self) -> None:
        within("evaluation.tokens", self.tokens, 1)
        within("evaluation.average", self.average, 0, 1)
        within("evaluation.trace_tokens", self.trace_tokens, 0)
        for name in ("every", "task_every", "task_limit"):
            if getattr(self, name) is not None:
                within(f"evaluation.{name}", getattr(self, name), 1)


@dataclass(frozen=True)
class Checkpoint:
    """What survives a crash."""

    every: int | None = None
    """Steps between checkpoints; a fifth of the run when not given. The last step is always saved."""
    minutes: float = 10.0
    """Longest time between checkpoints, where `every` would take longer; 0: no such limit."""
    keep: int = 2
    """Newest checkpoints kept."""
    best: bool = False
    """Save at evaluations that are the best so far too, and keep the best besides the newest."""

    def __post_init__(self) -> None:
        within("checkpoint.minutes", self.minutes, 0)
        within("checkpoint.keep", self.keep, 1)
        if self.every is not None:
            within("checkpoint.every", self.every, 1)
