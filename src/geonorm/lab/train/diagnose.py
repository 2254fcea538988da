"""A diagnosis in one line of a loss that has become NaN."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...measure.observe import ModelSite, watch
from ...models.decoder import Transformer

LARGE = 1e4


@torch.no_grad()
def diagnose(model: Transformer, ids: Tensor, step: int, what: str) -> str:
    """One line: what went wrong, the step, the first sub-layer that overflows or spikes on the batch ids, the clamp
    rate, the smallest |x|."""
    # whole tensors: a shard on another rank may be the one that is not finite
    whole = ((name, p.full_tensor() if isinstance(p, DTensor) else p) for name, p in model.named_parameters())
    broken = [name for name, p in whole if not torch.isfinite(p).all()]
    updates: dict[str, float] = {}
    radii: list[float] = []
    overflows: list[str] = []
    clamped: list[float] = []

    def look(place: ModelSite, x: Tensor, u: Tensor, after: Tensor) -> None:
        residual, name = place.residual, f"layer {place.site.layer} {place.site.kind}"
        assert residual is not None
        updates[name] = u.float().norm(dim=-1).max().item()
        radii.append(x.float().norm(dim=-1).min().item())
        if not torch.isfinite(after).all():
            overflows.append(name)
        at_limit = residual.scheme.clamped(x, u, residual.own(), residual.site(x))
        if at_limit is not None:
            clamped.append(at_limit.double().mean().item())

    with watch(model, look):
        model(ids)
    parts = [f"{what} at step {step}"]
    if broken:
        parts.append(f"{len(broken)} parameters are not finite, first {broken[0]}")
    if overflows:
        parts.append(f"first sub-layer to overflow: {overflows[0]}")
    else:
        name, largest = max(updates.items(), key=lambda item: item[1])
        word = "spike" if largest > LARGE else "largest update"
        parts.append(f"{word} at {name}: |u| = {largest:.3g}")
    if clamped:
        parts.append(f"clamp rate {sum(clamped) / len(clamped):.1%}")
    parts.append(f"smallest |x| = {min(radii):.3g}")
    parts.append("a lower --lr, a longer --optim.warmup or a smaller --optim.clip may help")
    return "; ".join(parts)
