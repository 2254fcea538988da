"""A diagnosis in one line of a loss that has become NaN."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...measure.observe import ModelSite, watch
from ...models.decoder import Transformer

LARGE = 1e4


def all_finite(parameter: Tensor) -> bool:
    """True if all of a parameter is finite, its shards on other ranks included."""
    whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return bool(torch.isfinite(whole).all())


def name_place(place: ModelSite) -> str:
    """A sub-layer in words."""
    return f"layer {place.site.layer} {place.site.kind}"


@torch.no_grad()
def diagnose(model: Transformer, ids: Tensor, step: int, what: str) -> str:
    """One line: what went wrong, the step, the first sub-layer that overflows or spikes on the batch ids, the clamp
    rate, the smallest |x|."""
    broken = [name for name, p in model.named_parameters() if not all_finite(p)]
    places: list[ModelSite] = []
    updates: list[float] = []
    radii: list[float] = []
    overflows: list[ModelSite] = []
    clamped: list[float] = []

    def look(place: ModelSite, x: Tensor, u: Tensor, after: Tensor) -> None:
        residual = place.residual
        assert residual is not None
        places.append(place)
        updates.append(u.float().norm(dim=-1).max().item())
        radii.append(x.float().norm(dim=-1).min().item())
        if not torch.isfinite(after).all():
            overflows.append(place)
        met = residual.scheme.clamped(x, u, residual.own(), residual.site(x))
        if met is not None:
            clamped.append(met.double().mean().item())

    with watch(model, look):
        model(ids)
    parts = [f"{what} at step {step}"]
    if broken:
        parts.append(f"{len(broken)} parameters are not finite, first {broken[0]}")
    if overflows:
        parts.append(f"first sub-layer to overflow: {name_place(overflows[0])}")
    else:
        largest = max(updates)
        word = "spike" if largest > LARGE else "largest update"
        parts.append(f"{word} at {name_place(places[updates.index(largest)])}: |u| = {largest:.3g}")
    if clamped:
        parts.append(f"clamp rate {sum(clamped) / len(clamped):.1%}")
    parts.append(f"smallest |x| = {min(radii):.3g}")
    parts.append("a lower --lr, a longer --optim.warmup or a smaller --optim.clip may help")
    return "; ".join(parts)
