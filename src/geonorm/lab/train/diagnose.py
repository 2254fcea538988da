"""A diagnosis in one line of a loss that has become NaN."""

from math import inf
from operator import itemgetter

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...measure.capture import Capture
from ...measure.probe import first_not_finite
from ...models.decoder import Transformer

SPIKE_LENGTH = 1e4
"""An update longer than this is called a spike."""


@torch.no_grad()
def diagnose(model: Transformer, ids: Tensor, step: int, what: str) -> str:
    """One line: what went wrong, the step, the first sub-layer that overflows on the batch ids (or the largest update),
    the clamp rate, the smallest |x|."""
    # whole tensors: a shard on another rank may be the one that is not finite
    whole = ((name, p.full_tensor() if isinstance(p, DTensor) else p) for name, p in model.named_parameters())
    broken = [name for name, p in whole if not torch.isfinite(p).all()]
    capture = Capture(model)
    with capture.watching():
        model(ids)
    rows = capture.rows()
    parts = [f"{what} at step {step}"]
    if broken:
        parts.append(f"{len(broken)} parameters are not finite, first {broken[0]}")
    if overflow := first_not_finite(rows):
        parts.append(f"first sub-layer to overflow: {overflow}")
    else:
        lengths = [inf if row["update_norm_p99"] is None else row["update_norm_p99"] for row in rows]
        length, row = max(zip(lengths, rows, strict=True), key=itemgetter(0))  # None: its square overflows in fp32
        word = "spike" if length > SPIKE_LENGTH else "largest update"
        parts.append(f"{word} at layer {row['layer']} {row['kind']}: |u| = {length:.3g}")
    if clamped := [row["clamped"] for row in rows if row["clamped"] is not None]:
        parts.append(f"clamp rate {sum(clamped) / len(clamped):.1%}")
    radii = [row["radius_p01"] for row in rows if row["radius"] is not None]
    parts.append(f"smallest |x| = {min(radii, default=torch.nan):.3g}")
    return "; ".join([*parts, "a lower --lr, a longer --optim.warmup or a smaller --optim.clip may help"])
