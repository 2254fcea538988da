"""Measures every sub-layer and every norm of a model while it runs: `observe` watches, the records here add up."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ..errors import ConfigError, require
from .accumulate import NormMeasure, SiteMeasure, filled
from .anatomy import Stack, blocks_of, join_path
from .norms import norms_of
from .observe import ModelSite, end_kind, sites_of, stacks_of, watch, watch_calls


def fit_mask(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """The mask in the shape of the tokens of x: (batch, tokens), or flat where x is. None where nothing is padding.
    ConfigError for a mask of other tokens."""
    if mask is None or bool(mask.all()):
        return None
    mask = mask.to(x.device).bool()
    if mask.shape == x.shape[: mask.dim()]:
        return mask
    if x.dim() == 2 and x.shape[0] == mask.numel():
        return mask.flatten()
    raise ConfigError(
        f"padding of shape {tuple(mask.shape)} does not fit the stream {tuple(x.shape)}; probe without padding"
    )


class NormRecord:
    """Everything that is measured of one norm."""

    def __init__(self, module: nn.Module, of_scheme: bool, about: dict[str, Any]) -> None:
        self.module, self.of_scheme, self.about = module, of_scheme, about
        self.measure = NormMeasure()


class Capture:
    """Sub-layers and norms of a model with their measures; `watching` measures what runs inside it.

    sites=False: norms alone, of any nn.Module; ConfigError for one without a norm. Else ConfigError for a model whose
    residual sub-layers are not known.
    """

    def __init__(self, model: nn.Module, *, sites: bool = True) -> None:
        self.model = model
        self.stacks = stacks_of(model) if sites else []
        self.records = {place: SiteMeasure() for place in (sites_of(model) if sites else ())}
        self.norms: dict[str, NormRecord] = {}
        for name, about in self.norm_places():
            module = model.get_submodule(name)
            if not isinstance(module, nn.Identity):  # ModernBERT's first block reads what the entry's norm returned
                self.norms[name] = NormRecord(module, ".own." in name, {"norm": name, **about})
        require(sites or self.norms, f"no LayerNorm or RMSNorm in {type(model).__name__}")
        self.masks: Mapping[str, Tensor | None] = {}
        self.at_clamp = False
        """True while `clamped` runs norms to find out which tokens are clamped: those calls are not the model's."""

    def norm_places(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name of every norm and the first columns of its row: those of ends and sub-layers, then all others."""
        homes = {place.home: place for place in self.records if place.residual is not None}
        stacks = [stack.name for stack, _ in self.stacks]
        listed = {} if homes else dict(listed_norms(self.model, self.stacks))
        yield from listed.items()
        modules = set(map(self.model.get_submodule, listed))
        for name, module in norms_of(self.model).items():
            path, _, role = name.partition(".own.")
            home = self.model.get_submodule(path)
            if home in homes:
                place = homes[home]
                yield name, norm_columns(place.stack, role, place.site.layer, place.site.kind)
            elif homes:
                stack = next((each for each in stacks if each in path.split(".")), stacks[-1])
                yield name, norm_columns(stack, end_kind(home) or "other", None, None)
            elif module not in modules:
                yield name, norm_columns("", "other", None, None)

    @contextmanager
    def watching(self, **masks: Tensor | None) -> Iterator[None]:
        """Measures every forward pass inside. masks by stack (decoder=, encoder=): (batch, tokens), 0 is padding."""
        self.masks = {"": next(iter(masks.values())), **masks} if len(masks) == 1 else masks
        norms = {name: record.module for name, record in self.norms.items()}
        with ExitStack() as hooks:
            if self.records:
                hooks.enter_context(watch(self.model, self.see_site, self.records))
            hooks.enter_context(watch_calls(norms, self.see_norm))
            yield

    def see_site(self, place: ModelSite, x: Tensor, u: Tensor | None, after: Tensor) -> None:
        residual, clamped = place.residual, None
        if residual is not None and u is not None:
            self.at_clamp = True
            clamped = residual.scheme.clamped(x, u, residual.own(), residual.site(x))
            self.at_clamp = False
        x, after = place.seen(x), place.seen(after)
        self.records[place].update(x, after, u, fit_mask(self.masks.get(place.stack), x), clamped)

    def see_norm(self, name: str, x: Tensor, y: Tensor) -> None:
        record = self.norms[name]
        mask = self.masks.get(record.about["stack"])
        padded = mask is not None and not mask.all()
        # queries and keys have four axes: either of two may be that of the tokens
        if not self.at_clamp and not (padded and x.dim() == 4 and not record.of_scheme):
            mask = fit_mask(mask, x)
            # a scheme's own norm may read all streams at once
            record.measure.update(x, y, filled(x, mask) if record.of_scheme else mask)

    def tokens(self) -> int:
        """Tokens measured so far: those of the first sub-layer of each stack; in a model without sub-layers those of
        the norm that read most."""
        first = {place.stack: measure for place, measure in reversed(self.records.items())}
        counts = [measure.moments.count for measure in first.values() if measure.moments]
        norms = [norm.measure.moments.count for norm in self.norms.values() if norm.measure.moments]
        return sum(counts) if self.records else max(norms, default=0)

    def rows(self) -> list[dict[str, Any]]:
        """One row per sub-layer that ran, in the columns of trace.jsonl."""
        return [
            {**place.about, **measure.row()} for place, measure in self.records.items() if measure.moments is not None
        ]

    def norm_rows(self) -> list[dict[str, Any]]:
        """One row per norm that ran, in the columns of norms.jsonl."""
        return [{**norm.about, **norm.measure.row()} for norm in self.norms.values() if norm.measure.moments]


def norm_columns(stack: str, role: str, layer: float | None, kind: str | None) -> dict[str, Any]:
    return {"stack": stack, "role": role, "layer": layer, "kind": kind}


def listed_norms(model: Any, stacks: Sequence[tuple[Stack, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Norms at the ends of each stack and in its blocks."""
    for stack, base in stacks:
        depth = len(blocks_of(model, stack, base))
        for path, role, layer in ((stack.entry, "entry", 0), (stack.exit, "exit", depth - 1)):
            if path is not None:
                yield join_path(base, path), norm_columns(stack.name, role, layer, None)
        for layer in range(depth):
            for sublayer in stack.of(layer):
                for path, role in sublayer.norms.items():
                    name = join_path(base, stack.blocks, str(layer), path)
                    yield name, norm_columns(stack.name, role, layer, sublayer.kind)
