"""The geometry of every sub-layer and norm of our own models, seen through hooks in one forward pass."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import sphere
from ...dynamics.rates import slope
from ...measure.accumulate import NormMeasure, SiteMeasure, filled
from ...measure.metrics import as_fp64, mean
from ...measure.observe import Gradients as Gradients, ModelSite, gradient_norms, sites_of, watch, watch_calls
from ...models.decoder import Transformer
from ...modes import evaluating
from ...norms import Derf, DyT, GatedNorm, LayerNorm, RMSNorm, UnitNorm, upcast
from ...residual import Residual, StreamEnd
from ...schemes import Scheme, Site, read_at, write_at
from ..distributed.parallel import local_part, sum_over_ranks
from ..runs.folder import RunFolder
from .hooks import Hook, Row
from .state import TrainState

NORMS = (LayerNorm, RMSNorm, GatedNorm, UnitNorm, DyT, Derf)
"""The norms that are measured."""
QUANTILE = re.compile(r"_p\d\d$")
GRADIENTS = dict.fromkeys(("grad_norm", "grad_w1", "grad_w2"))


class Trace(NamedTuple):
    """Rows of trace.jsonl and of norms.jsonl."""

    sites: list[dict[str, Any]]
    norms: list[dict[str, Any]]


class TraceHook(Hook):
    """Writes the trace of each evaluation: rows of trace.jsonl and norms.jsonl."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.gradients: Gradients = {}

    def after_backward(self, state: TrainState, evaluating: bool) -> None:
        if evaluating:
            self.gradients = gradient_norms(sites_of(state.model), gradient_length)

    def on_evaluation(self, state: TrainState, row: Row) -> None:
        sites, norms = trace(state.model, state.validation.trace_ids(), state.step, self.gradients)
        self.run.append(self.run.trace, sites)
        self.run.append(self.run.norms, norms)


@torch.no_grad()
def trace(model: Transformer, ids: Tensor, step: int, gradients: Gradients) -> Trace:
    """One row per site and one per norm for ids (batch, tokens), in the columns of `measure` but for most quantiles.

    Of a site also: what the definition predicts (`predict_step`), which tokens are clamped, the rotation by the site's
    own norm, and the gradient norms of the branch's weights at this step, before clipping. Norms are those of
    sites and of both ends, each as it is first called for these tokens; `norm` is its name at its place.
    """
    sites: list[dict[str, Any]] = []
    norms: dict[nn.Module, dict[str, Any]] = {}

    def look(place: ModelSite, x: Tensor, u: Tensor, after: Tensor) -> None:
        residual = place.residual
        assert residual is not None
        clamped = residual.scheme.clamped(x, u, residual.own(), residual.site(x))
        measure = SiteMeasure()
        start, end = (as_fp64(place.seen(part)) for part in (x, after))
        measure.update(start, end, as_fp64(u), clamped=clamped)
        rotations = [norms[module]["rotation"] for module in residual.own.children() if module in norms]
        sites.append(
            {
                **place_columns(step, place.scheme, place.site),
                **without_quantiles(measure.row(), "ratio_p99"),
                **tangential_quantiles("ratio", start, end - start),
                **tangential_quantiles("proposal", start, as_fp64(u)),
                **predict_step(residual, x, u),
                "rotation": rotations[0] if rotations else None,
                **GRADIENTS,
                **gradients.get(place.key, {}),
            }
        )

    norms_of_stream = stream_norms(model)

    def look_at_norm(norm: nn.Module, x: Tensor, y: Tensor) -> None:
        if norm in norms:  # `predict_step` runs it once more, and some schemes use a norm twice
            return
        site, scheme, name = norms_of_stream[norm]
        measure = NormMeasure()
        measure.update(as_fp64(x), as_fp64(y), filled(x, None))
        norms[norm] = {**place_columns(step, str(scheme), site), "norm": name, **without_quantiles(measure.row())}

    with evaluating(model), watch(model, look), watch_calls({norm: norm for norm in norms_of_stream}, look_at_norm):
        model(ids)
    return Trace(sites, list(norms.values()))


def place_columns(step: int, scheme: str, site: Site) -> dict[str, Any]:
    """The first columns of a row: when and where it was measured."""
    return {"step": step, "scheme": scheme, "layer": site.layer, "kind": site.kind, "t": site.t}


def stream_norms(model: Transformer) -> dict[nn.Module, tuple[Site, Scheme, str]]:
    """Every norm of the stream that is measured: its site, its scheme, its name there."""
    residuals = (module for module in model.blocks.modules() if isinstance(module, Residual))
    places: list[Any] = [model.entry, *residuals, model.exit]
    return {
        module: (place.site if isinstance(place, StreamEnd) else place.place(), place.scheme, name)
        for place in places
        for name, module in place.own.named_modules()
        if type(module) in NORMS
    }


def without_quantiles(row: dict[str, Any], *keep: str) -> dict[str, Any]:
    """Means and standard deviations: a run has a row per evaluation and place, quantiles would triple it."""
    return {key: value for key, value in row.items() if key in keep or not QUANTILE.search(key)}


def tangential_quantiles(name: str, x: Tensor, step: Tensor) -> dict[str, float]:
    """Quantiles over tokens of |v|/|x|, v the part of a step tangential to x. Of the update as the sub-layer returned
    it (`proposal`): the angle before clamp and decay."""
    lengths = sphere.safe_divide(sphere.radius(sphere.tangent(x, step)), sphere.radius(x)).flatten()
    at = torch.quantile(lengths, torch.tensor([0.05, 0.5, 0.95], dtype=lengths.dtype, device=lengths.device))
    return dict(zip((f"{name}_p05", f"{name}_p50", f"{name}_p95"), at.tolist(), strict=True))


def predict_step(residual: Residual, x: Tensor, u: Tensor) -> dict[str, float | None]:
    """What the scheme's definition predicts for this site to first order from its own x and u: means over tokens.

    The velocity d/dh write(x, u; h) at h = 0 is that of the network itself, with this site's norms, gains and scalars,
    so lengths are the network's (N is rms, not unit). It starts from x0 = write(x, u; 0): a scheme that normalises the
    stream puts a token back on its sphere, turned where gains differ, even by a step of size 0.

    law_radius  |x0| + r', the radius after the site
    law_angle   |P(velocity)| / |x0|, the angle of the step in radians, from x0
    law_start   the angle from x to x0, radians: 0 except where the stream itself is normalised (or streams mix)
    speed       s with theta' = P(u) / s: the inverse of the mean of 1/s over tokens, 1/s taken along P(u); None for
                schemes without such a law, and where nothing turns
    """
    scheme, site = residual.scheme, residual.site(x)
    x, u = upcast(x.detach()), upcast(u.detach())

    def step(h: Tensor) -> Tensor:
        p = residual.own()
        _, carry = read_at(scheme, x, p, site)
        return scheme.seen(write_at(scheme, x, u, p, site, h, carry=carry))

    start, velocity = (part.double() for part in slope(step, x))
    radius = sphere.radius(start)
    radial = sphere.safe_divide(sphere.dot(velocity, start), radius)
    turn = sphere.safe_divide(sphere.tangent(start, velocity), radius)
    across = sphere.tangent(start, u.double())
    rate = sphere.safe_divide(sphere.dot(turn, across), sphere.dot(across, across)).mean()
    return {
        "law_radius": mean(radius + radial),
        "law_angle": mean(sphere.radius(turn)),
        "law_start": mean(sphere.angle(scheme.seen(x).double(), start)),
        "speed": mean(1 / rate) if scheme.planar and rate != 0 else None,
    }


def gradient_length(parameters: Iterable[Tensor]) -> float:
    """Length of the gradients that are there as one vector, wherever its parts lie."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = [local_part(gradient).double().square().sum() for gradient in gradients]
    return sum_over_ranks(torch.stack(squares).sum(), gradients[0]).sqrt().item() if squares else 0.0
