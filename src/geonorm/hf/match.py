"""init="match": gains for which a changed model begins as near as it can to the model that it was.

The stock model runs once on a probe and shows what every branch read and where the stream went. The changed model then
runs on the same probe, and each site is fitted when the computation reaches it, on the stream that is really there:

    what the branch reads   gains (and bias) of the scheme's input norm, or those that stand on the branch, by least
                            squares per feature, if that is nearer than the carried ones
    what it proposes        one number on the update (or on the gains of the scheme's output norm), such that the
                            direction of the stream after the site is nearest
    what leaves             gains of the norm at the end, by least squares; the last norm on the stream where the scheme
                            has none at the end

Only tokens are compared: what stands at padding, by the attention mask of the stack, counts nowhere.

Nothing is trained, no matrix is touched. It is a start for continued training, not a conversion without loss: numbers
say how near it is.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..modes import evaluating
from ..norms import upcast
from ..residual import Residual
from ..schemes import Site, read_at, write_at
from ..sites.anatomy import blocks_of, join_path
from ..sites.inputs import check_ids, read_by
from ..sites.watch import ModelSite, sites_of, stacks_of, watch, watch_calls
from .block import Exit, has_gains, norm_in

SEQUENCES, TOKENS = 4, 64
"""Size of a random probe."""
NEAR_ENOUGH = 1e-6
"""Relative error at which carried gains are left alone."""


@dataclass
class Near:
    """Relative errors |new - stock| / |stock| of what the model returns (logits or last hidden states) on the probe."""

    what: str
    kept: float
    """Under init="keep"."""
    matched: float
    tokens: int

    def __str__(self) -> str:
        return (
            f"relative error of the {self.what} {self.matched:.4g} after fitting gains, {self.kept:.4g} without, "
            f"on {self.tokens} tokens"
        )


@dataclass
class Seen:
    """What the stock model did at one site: what the branches read, and the stream after it."""

    reads: list[Tensor] = field(default_factory=list)
    after: Tensor | None = None


Sites = Mapping[tuple[str, Site], Seen]
"""Every site by its stack and where it stands there."""
Masks = Mapping[str, Tensor | None]
"""Of each stack: True for tokens and False for padding, (batch, tokens); None where there is no padding."""


@torch.no_grad()
def match_model(model: Any, change: Callable[[], Any], probe: Any) -> tuple[Any, Near]:
    """Runs the stock model, changes it, fits it; returns what `change` did and how near it is."""
    inputs = inputs_of(model, probe)
    masks = masks_of(model, inputs)
    if probe is not None:
        check_ids(model, inputs, "a probe")
        with read_by(model, "the probe"):
            answer(model, inputs)
    with evaluating(model):
        sites, leaves, stock = look_at(model, inputs)
        report = change()
        model.eval()
        before = run_kept(model, inputs)
        fit_sites(model, inputs, sites, leaves, masks)
        what, after = answer(model, inputs)
    mask = list(masks.values())[-1] if stock.dim() > 2 else None  # classes of a sequence are no tokens
    before, after, stock = (rows(out, mask) for out in (before, after, stock))
    return report, Near(what, error(before, stock), error(after, stock), len(stock))


def inputs_of(model: Any, probe: Any) -> dict[str, Any]:
    """Keyword arguments of a forward pass; random ids or pixels, the same each time, where none are given."""
    config, device = model.config, model.device
    if isinstance(probe, Mapping):
        return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in probe.items()}
    if isinstance(probe, Tensor):
        inputs = {model.main_input_name: probe.to(device)}
    elif probe is not None:
        raise ConfigError("probe must be a tensor of ids, or the keyword arguments of the forward pass")
    else:
        generator = torch.Generator().manual_seed(0)
        if model.main_input_name == "pixel_values":
            shape = (SEQUENCES, config.num_channels, config.image_size, config.image_size)
            drawn = torch.randn(shape, generator=generator).to(model.dtype)
        else:
            longest = getattr(config, "max_position_embeddings", None) or TOKENS
            length = max(1, min(TOKENS, longest - 2))  # RoBERTa counts positions from 2
            drawn = torch.randint(config.vocab_size, (SEQUENCES, length), generator=generator)
        inputs = {model.main_input_name: drawn.to(device)}
    if config.is_encoder_decoder and hasattr(model, "get_decoder"):
        inputs["decoder_input_ids"] = inputs[model.main_input_name]
    return inputs


def masks_of(model: Any, inputs: dict[str, Any]) -> Masks:
    """The mask of every stack, the last of which is what the model returns. ConfigError for one that does not say which
    tokens are padding."""
    stacks = [stack.name for stack, _ in stacks_of(model)]
    found: dict[str, Tensor | None] = {}
    for stack in stacks:
        part = "decoder_" if stack == "decoder" and len(stacks) > 1 else ""
        name, mask = f"{part}attention_mask", inputs.get(f"{part}attention_mask")
        found[stack] = None
        if mask is None:
            continue
        read = next(
            (x for at in ("input_ids", "inputs_embeds") if isinstance(x := inputs.get(part + at), Tensor)), mask
        )
        if not isinstance(mask, Tensor) or mask.dim() != 2 or (read.dim() > 1 and mask.shape != read.shape[:2]):
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ConfigError(
                f"the {name} of a probe is (batch, tokens) as its tokens are, 1 for tokens, 0 for padding; not {shape}"
            )
        if not mask.any():
            raise ConfigError(f"the probe has no tokens: its {name} is 0 everywhere")
        found[stack] = None if mask.all() else mask.bool()
    return found


def rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """The vectors of tokens, one a row; x is (batch, tokens, dim), or flat as OPT's MLP sees it."""
    flat = x.reshape(-1, x.shape[-1])
    if mask is None:
        return flat
    if len(flat) != mask.numel():
        raise ConfigError(
            f"padding of shape {tuple(mask.shape)} does not fit what the model computes, {tuple(x.shape)}: use a probe "
            "without padding"
        )
    return flat[mask.flatten()]


def answer(model: Any, inputs: dict[str, Any]) -> tuple[str, Tensor]:
    """What the model returns: its name, and the tensor. Without a cache: a branch that is fitted runs twice."""
    cached = "use_cache" in inspect.signature(model.forward).parameters
    out = model(**{**inputs, **({"use_cache": False} if cached else {})})
    for what in ("logits", "last_hidden_state"):
        if getattr(out, what, None) is not None:
            return what.replace("_", " ").replace("state", "states"), upcast(getattr(out, what))
    raise ConfigError(f"{type(model).__name__} returns neither logits nor hidden states to match")


def run_kept(model: Any, inputs: dict[str, Any]) -> Tensor:
    """What the model returns under init="keep": without the gains that only matching puts on branches."""
    added = [
        chain.gains
        for module in model.modules()
        if isinstance(module, Residual) and not has_gains(norm_in(module.own, "input"))
        for chain in cast(Any, module.branch).chains
        if chain.gains is not None
    ]
    values = [copy.deepcopy(gains.state_dict()) for gains in added]
    for gains in added:
        gains.reset_parameters()
    _, returned = answer(model, inputs)
    for gains, saved in zip(added, values, strict=True):
        gains.load_state_dict(saved)
    return returned


def error(found: Tensor, wanted: Tensor) -> float:
    return float((upcast(found) - upcast(wanted)).norm() / upcast(wanted).norm())


def look_at(model: Any, inputs: dict[str, Any]) -> tuple[Sites, dict[str, Tensor], Tensor]:
    """One pass of the stock model: every site; what leaves each stack; what is returned."""
    sites: dict[tuple[str, Site], Seen] = defaultdict(Seen)
    leaves: dict[str, Tensor] = {}

    def look(place: ModelSite, x: Tensor, u: Tensor, after: Tensor) -> None:
        leaves[place.stack] = sites[place.key].after = after

    found = sites_of(model)
    first = {(place, number): chain[0] for place in found for number, chain in enumerate(place.chains)}
    exits = {
        stack.name: model.get_submodule(join_path(base, stack.exit)) for stack, base in stacks_of(model) if stack.exit
    }
    with (
        watch(model, look, found),
        watch_calls(first, lambda at, y, _: sites[at[0].key].reads.insert(at[1], y)),
        watch_calls(exits, lambda name, _, out: leaves.update({name: out})),
    ):
        _, returned = answer(model, inputs)
    return sites, leaves, returned


def fit_sites(model: Any, inputs: dict[str, Any], sites: Sites, leaves: dict[str, Tensor], masks: Masks) -> None:
    """One pass of the changed model in which every site is fitted before it goes on."""
    patched: list[nn.Module] = []
    found = sites_of(model)
    for stack, base in stacks_of(model):
        inside, mask = [place for place in found if place.stack == stack.name], masks[stack.name]
        end: Any = blocks_of(model, stack, base)[-1].exit
        if stack.exit is not None:
            end = model.get_submodule(join_path(base, stack.exit))
        normed = norm_in(end.own, "norm") is not None
        for place in inside:
            if place.key in sites:
                residual: Any = place.home
                beyond = leaves[stack.name] if place is inside[-1] and not normed else None
                residual.forward = fit_first(residual, sites[place.key], beyond, mask)
                patched.append(residual)
        if normed:
            end.forward = fit_exit(end, leaves[stack.name], mask)
            patched.append(end)
    try:
        answer(model, inputs)
    finally:
        for module in patched:
            del module.forward


def fit_first(residual: Residual, seen: Seen, beyond: Tensor | None, mask: Tensor | None) -> Callable[..., Any]:
    """The forward pass of a site that first fits it. beyond: what the last norm on the stream should give."""

    def forward(x: Tensor, **arguments: Any) -> Any:
        scheme, own, site = residual.scheme, residual.own, residual.site(x)
        p = own()
        branch: Any = residual.branch
        reads = norm_in(own, "input")
        if reads is not None and len(seen.reads) == 1:
            regress(reads, lambda: read_at(scheme, x, p, site)[0], seen.reads[0], mask)
        y, carry = read_at(scheme, x, p, site)
        for chain, wanted in zip(branch.chains, seen.reads, strict=True):
            if chain.gains is not None:
                regress(chain.gains, partial(chain.gains, y), wanted, mask)
        out = branch(y.to(residual.compute_dtype(y)), **arguments)
        u = out[0] if isinstance(out, tuple) else out
        write = partial(write_at, scheme, x, p=p, site=site, carry=carry)
        weight = getattr(norm_in(own, "output") if branch.gain is None else branch.gain, "weight", None)
        if weight is not None and seen.after is not None:
            scale(weight, lambda: scheme.seen(write(proposal(u, branch))), seen.after, mask)
        stream = norm_in(own, "stream")
        if beyond is not None and stream is not None:
            proposed = proposal(u, branch)
            regress(stream, lambda: write(proposed), beyond, mask)
        return type(residual).forward(residual, x, **arguments)

    return forward


def proposal(u: Tensor, branch: Any) -> Tensor:
    """The update with the gain as it is now: u came with a gain of 1."""
    return u if branch.gain is None else branch.gain(u)


def fit_exit(end: Exit, wanted: Tensor, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        norm = norm_in(end.own, "norm")
        assert norm is not None
        regress(norm, lambda: type(end).forward(end, x), wanted, mask)
        return type(end).forward(end, x)

    return forward


def regress(module: Any, run: Callable[[], Tensor], wanted: Tensor, mask: Tensor | None = None) -> None:
    """Gains (and bias, where there is one) of a norm or an Affine such that `run` gives `wanted`, per feature, if that
    is nearer than what they are now, at the tokens of the mask."""
    weight, bias = module.weight, getattr(module, "bias", None)
    if weight is None:
        return
    target = rows(upcast(wanted), mask)
    now = error(rows(run(), mask), target)
    if now < NEAR_ENOUGH:
        return
    kept = [(p, p.clone()) for p in (weight, bias) if p is not None]
    weight.fill_(1.0)
    if bias is not None:
        bias.zero_()
    plain = rows(upcast(run()), mask)
    middle, aim = (plain.mean(0), target.mean(0)) if bias is not None else (torch.zeros_like(plain[0]),) * 2
    spread = (plain - middle).square().sum(0)
    slope = torch.where(spread > 0, ((plain - middle) * (target - aim)).sum(0) / spread.clamp(min=1e-30), 1.0)
    weight.copy_(slope)
    if bias is not None:
        bias.copy_(aim - slope * middle)
    if not error(rows(run(), mask), target) < now:
        for p, value in kept:
            p.copy_(value)


def scale(weight: Tensor, run: Callable[[], Tensor], wanted: Tensor, mask: Tensor | None = None) -> None:
    """The factor on a weight for which the direction of `run` is nearest to that of `wanted` at the tokens of the mask:
    a grid of factors from 1/1000 to 1000, then thirds of what is left."""
    start = weight.clone()
    target = rows(upcast(wanted), mask)

    def off(power: float) -> float:
        weight.copy_(start * 10.0**power)
        cosine = torch.cosine_similarity(rows(upcast(run()), mask), target, dim=-1)
        return float((1 - cosine.double()).mean())

    best, error_now = 0.0, off(0.0)
    if error_now < NEAR_ENOUGH:
        weight.copy_(start)
        return
    for power in [step / 4 for step in range(-12, 13)]:
        found = off(power)
        if found < error_now:
            best, error_now = power, found
    low, high = best - 0.25, best + 0.25
    for _ in range(12):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if off(left) < off(right) else (left, high)
    middle = (low + high) / 2
    weight.copy_(start * 10.0 ** (middle if off(middle) < error_now else best))
