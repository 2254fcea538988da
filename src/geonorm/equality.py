"""Two residual rules, compared as functions: do sub-layers and head read the same, whatever the sub-layers answer?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .norms import NormSpec
from .residual import Residual, StreamEnd
from .schemes import Scheme, Site, advance, parse, slot_at

DEPTH, SEQUENCES, TOKENS, DIM = 6, 8, 4, 16
TOLERANCE = 1e-9
"""Largest relative difference that counts as rounding: fp64, norms without eps."""
SLOTS = {"q": (4, 4), "k": (4, 4), "v": (4, 4), "q_rope": (4, 4), "k_rope": (4, 4), "up": (16,), "gate": (16,)}
"""Where a scheme may put a module inside a branch or the head, and the shape of what is handed to it."""


@dataclass(frozen=True)
class Same:
    """What `same` found; true where the two rules are one function, and its text says why or why not."""

    first: Scheme
    second: Scheme
    error: float
    """The largest relative difference between what is read under one and the other, over all sub-layers and tokens."""
    reason: str

    def __bool__(self) -> bool:
        return self.error <= TOLERANCE

    def __str__(self) -> str:
        return self.reason


class ScriptedBranch(nn.Module):
    """A sub-layer that answers with an update of one's choice and notes what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.update = self.input = torch.empty(0)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Several inputs are noted one after the other, one three times."""
        self.input = torch.cat(inputs * 3 if len(inputs) == 1 else inputs, -1)
        return self.update


class ScriptedModel(nn.Module):
    """Entry, sub-layers and exit of a scheme in fp64, with scripted branches."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme
        sites = [Site(layer, kind, DEPTH) for layer in range(DEPTH) for kind in ("attn", "mlp")]
        norm = NormSpec("rms", DIM, eps=0.0)
        self.entry = StreamEnd(scheme, Site(0, "entry", DEPTH), norm)
        self.branches = [ScriptedBranch() for _ in sites]
        pairs = zip(self.branches, sites, strict=True)
        self.layers = nn.ModuleList(Residual(branch, scheme, site, DIM, eps=0.0) for branch, site in pairs)
        self.exit = StreamEnd(scheme, Site(DEPTH - 1, "exit", DEPTH), norm)
        self.slots = nn.ModuleDict()
        for site in sites:
            for name, shape in SLOTS.items():
                slot = slot_at(scheme.resolve(site), name, shape, DIM, site)
                self.slots[f"{name} in {site.kind} of block {site.layer}"] = slot or nn.Identity()
        logits = slot_at(self.exit.scheme, "logits", (DIM,), DIM, self.exit.site)
        self.slots["logits"] = logits or nn.Identity()
        self.double()
        advance(self)  # before the first step every ProRes leaves out its updates

    def forward(self, embedding: Tensor, updates: Tensor) -> dict[str, Tensor]:
        """What each sub-layer reads, then the head, then what modules inside branches return, (..., dim) each."""
        x = self.entry(embedding)
        reads: dict[str, Tensor] = {}
        for layer, branch, update in zip(self.layers, self.branches, updates, strict=True):
            branch.update = update
            x = layer(x)
            reads[f"{layer.kind} of block {layer.index}"] = branch.input
        reads["the head"] = self.exit(x)
        for place, slot in self.slots.items():
            shape = SLOTS.get(place.split()[0], (DIM,))
            reads[place] = slot(embedding.unflatten(-1, shape)).reshape(embedding.shape)
        return reads


@torch.no_grad()
def same(first: str | Scheme, second: str | Scheme, seed: int = 0) -> Same:
    """Say whether two residual rules are one function of the sub-layers, up to a rescaling of the stream.

    They are if under both every sub-layer and the head read the same, whatever the sub-layers answer: then no model can
    tell one from the other, though lengths of the stream may differ. Both are run in fp64, without eps, in 6 blocks of
    two sub-layers on 32 tokens: rules that agree at this depth alone pass. Updates are drawn at random, with lengths
    over two orders of magnitude, and so are learned values, which the two share where name and shape agree. What
    happens outside the stream (initial values, constraints on weights, recipes) is not compared.

    Returns true or false as a condition; its text is the reason, with a counter-example where they differ. Rules that
    part only when values that one of them learns leave their start are two functions, and the text says so. Raises
    ConfigError for an unknown scheme.

    >>> print(geonorm.same("peri", "beam"))
    peri and beam are one function in 6 blocks: ...
    >>> bool(geonorm.same("pre", "post"))
    False
    """
    rules = parse(first), parse(second)
    trained = compare_reads(*rules, seed, start=False)
    if trained:
        return trained
    start = compare_reads(*rules, seed, start=True)
    return replace(trained, reason=f"{trained}; before training they are one function") if start else trained


def compare_reads(first: Scheme, second: Scheme, seed: int, start: bool) -> Same:
    """What `same` finds with all learned values drawn, or (start) with those that one alone has at their start."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    models = ScriptedModel(first), ScriptedModel(second)
    draw_values(*models, draw, start)
    embedding = draw(SEQUENCES, TOKENS, DIM)
    lengths = 10 ** (2 * torch.rand(2 * DEPTH, SEQUENCES, TOKENS, 1, generator=generator, dtype=torch.float64) - 1)
    updates = lengths * draw(2 * DEPTH, SEQUENCES, TOKENS, DIM)
    reads, others = (model(embedding, updates) for model in models)
    errors = {place: (y - others[place]).norm(dim=-1) / y.norm(dim=-1) for place, y in reads.items()}
    for place, error in errors.items():
        if not error.max() <= TOLERANCE:
            token = int(error.nan_to_num(torch.inf).argmax())
            here = [each[place].flatten(0, -2)[token, :3].tolist() for each in (reads, others)]
            ours, theirs = (" ".join(f"{value:.4g}" for value in values) for values in here)
            example = f"{place} sees {ours} ... and {theirs} ..., {error.max():.2g} apart"
            return Same(first, second, error.max().item(), f"{first} and {second} are two functions: {example}")
    worst = max(error.max().item() for error in errors.values())
    reason = f"{first} and {second} are one function in {DEPTH} blocks: largest relative difference {worst:.1g}"
    return Same(first, second, worst, reason)


def draw_values(first: ScriptedModel, second: ScriptedModel, draw: Callable[..., Tensor], start: bool) -> None:
    """Draw the learned values of two models: what they have in common, and without `start` the rest, each its own."""
    ours, theirs = dict(first.named_parameters()), dict(second.named_parameters())
    common = {name for name in ours.keys() & theirs.keys() if ours[name].shape == theirs[name].shape}
    for name in sorted(common):
        ours[name].add_(0.3 * draw(*ours[name].shape))
        theirs[name].copy_(ours[name])
    for values in (ours, theirs):
        for name in sorted(values.keys() - common):
            if not start:
                values[name].add_(0.3 * draw(*values[name].shape))


def sort_into_classes(schemes: Sequence[str | Scheme]) -> list[list[Scheme]]:
    """Sort schemes into classes of one function each, by comparison with the first of each class."""
    classes: list[list[Scheme]] = []
    for scheme in map(parse, schemes):
        home = next((each for each in classes if same(each[0], scheme)), None)
        if home is None:
            classes.append([scheme])
        else:
            home.append(scheme)
    return classes
