"""The geometry of every residual site and norm of our own models, seen through hooks in one forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import sphere
from ...nn.decoder import Decoder
from ...norms import DyT, LayerNorm, RMSNorm, UnitNorm, upcast
from ...probes import NormMeasure, SiteMeasure
from ...probes.measures import mean, wide
from ...residual import Residual
from ...schemes import Site, read_at, write_at
from ..scale.tensor import alike, local, summed

Look = Callable[[Site, Residual, Tensor, Tensor, Tensor], None]
CENTRED: dict[type, bool | None] = {LayerNorm: True, RMSNorm: False, UnitNorm: False, DyT: None}
"""The norms that are measured, and whether they take the mean out."""
QUANTILE = re.compile(r"_p\d\d$")
MATRICES = {"w1": ("up", "gate"), "w2": ("down",)}
"""W1 and W2 of an MLP, by role (arXiv:2002.04745): what reads, and what writes to the stream."""


class Trace(NamedTuple):
    """Rows of trace.jsonl and of norms.jsonl."""

    sites: list[dict[str, Any]]
    norms: list[dict[str, Any]]


@contextmanager
def watching(model: Decoder, look: Look) -> Iterator[None]:
    """Calls look(site, residual, x, u, x') for every site of every forward pass inside."""
    handles = []
    seen: dict[int, Tensor] = {}

    def watch(site: Site, residual: Residual) -> None:
        def branch_hook(_: nn.Module, __: Any, out: Any) -> None:
            seen[id(residual)] = out[0] if isinstance(out, tuple) else out

        def site_hook(_: nn.Module, inputs: tuple[Tensor, ...], out: Any) -> None:
            after = out[0] if isinstance(out, tuple) else out
            look(site, residual, inputs[0], seen.pop(id(residual)), after)

        handles.append(residual.branch.register_forward_hook(branch_hook))
        handles.append(residual.register_forward_hook(site_hook))

    for site, residual in model.residuals():
        watch(site, residual)
    compiled = any(block._compiled_call_impl is not None for block in model.blocks)
    try:
        with (
            torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        ):  # compiled blocks run no new hooks
            yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def trace(model: Decoder, ids: Tensor, step: int, grad_norms: dict[str, float]) -> Trace:
    """One row per site and one per norm for ids (batch, tokens), in the columns of `probes` but for its quantiles.

    Of a site also: what the definition predicts (`law`), which tokens are clamped, the rotation by the site's own norm,
    and the gradient norms of the branch's weights at this step (keys as `branch_grad_norms`). Norms are those of sites
    and of both ends, each as it is first called for these tokens; `norm` is its name at its place.
    """
    sites: list[dict[str, Any]] = []

    def look(site: Site, residual: Residual, x: Tensor, u: Tensor, after: Tensor) -> None:
        clamped = residual.scheme.clamped(x, u, residual.own(), residual.site(x))
        measure = SiteMeasure()
        before, behind = (wide(residual.scheme.seen(part)) for part in (x, after))
        measure.update(before, behind, wide(u))
        own = [norms[key]["rotation"] for key in map(id, residual.own.children()) if key in norms]
        key = site_key(site)
        sites.append(
            {
                **place(step, str(residual.scheme), site),
                **without_quantiles(measure.row(), "ratio_p99"),
                **spread("ratio", before, behind - before),
                **spread("proposal", before, wide(u)),
                **law(residual, x, u),
                "clamped": None if clamped is None else clamped.double().mean().item(),
                "rotation": own[0] if own else None,
                "grad_norm": grad_norms.get(key),
                **{f"grad_{name}": grad_norms.get(f"{key}.{name}") for name in MATRICES},
            }
        )

    norms: dict[int, dict[str, Any]] = {}
    handles = list(watch_norms(model, step, norms))
    was_training = model.training
    model.eval()
    try:
        with watching(model, look):
            model(ids)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return Trace(sites, list(norms.values()))


def place(step: int, scheme: str, site: Site) -> dict[str, Any]:
    return {"step": step, "scheme": scheme, "layer": site.layer, "kind": site.kind, "t": site.t}


def without_quantiles(row: dict[str, Any], *but: str) -> dict[str, Any]:
    """Means and standard deviations: a run has a row per evaluation and place, quantiles would triple it."""
    return {key: value for key, value in row.items() if key in but or not QUANTILE.search(key)}


def spread(name: str, x: Tensor, step: Tensor) -> dict[str, float]:
    """Quantiles over tokens of |v|/|x|, v the part of a step tangential to x. Of the update as the sub-layer returned
    it (`proposal`): what a ceiling has to deal with, before it and before any decay."""
    found = sphere.safe_divide(sphere.radius(sphere.tangent(x, step)), sphere.radius(x)).flatten()
    at = torch.quantile(found, torch.tensor([0.05, 0.5, 0.95], dtype=found.dtype, device=found.device))
    return dict(zip((f"{name}_p05", f"{name}_p50", f"{name}_p95"), at.tolist(), strict=True))


def law(residual: Residual, x: Tensor, u: Tensor) -> dict[str, float | None]:
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

    h = torch.zeros((), dtype=x.dtype, device=x.device)
    start, velocity = (part.double() for part in torch.func.jvp(step, (h,), (torch.ones_like(h),)))
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


def watch_norms(model: Decoder, step: int, rows: dict[int, dict[str, Any]]) -> Iterator[Any]:
    """Hooks every norm of the stream: a row for each, by the id of the module."""
    ends = [(end.site, end.scheme, end.own) for end in (model.entry, model.exit)]
    inside = [(site, residual.scheme, residual.own) for site, residual in model.residuals()]
    for site, scheme, own in (ends[0], *inside, ends[1]):
        for name, module in own.named_modules():
            if type(module) in CENTRED:
                yield module.register_forward_hook(norm_hook(place(step, str(scheme), site), name, rows))


def norm_hook(about: dict[str, Any], name: str, rows: dict[int, dict[str, Any]]) -> Callable[..., None]:
    def hook(norm: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if id(norm) in rows:  # `law` runs it once more, and some schemes use a norm twice
            return
        measure = NormMeasure(CENTRED[type(norm)])
        measure.update(wide(inputs[0]), wide(out), getattr(norm, "weight", None), getattr(norm, "bias", None))
        rows[id(norm)] = {**about, "norm": name, **without_quantiles(measure.row())}

    return hook


def site_key(site: Site) -> str:
    return f"{site.layer}.{site.kind}"


@torch.no_grad()
def branch_grad_norms(model: Decoder) -> dict[str, float]:
    """Gradient norm of each site's branch weights, by `site_key`, before clipping; of an MLP also of W1 and W2 apart,
    by `site_key` and name."""
    norms = {}
    for site, residual in model.residuals():
        norms[site_key(site)] = grad_norm(residual.branch.parameters())
        for name, roles in MATRICES.items() if site.kind == "mlp" else ():
            linears = [module for module in residual.branch.modules() if isinstance(module, nn.Linear)]
            norms[f"{site_key(site)}.{name}"] = grad_norm(m.weight for m in linears if getattr(m, "role", "") in roles)
    return norms


def grad_norm(parameters: Iterable[Tensor]) -> float:
    groups = alike(p.grad for p in parameters if p.grad is not None)
    squares = [summed(torch.stack([local(g).double().square().sum() for g in group]).sum(), group) for group in groups]
    return torch.stack(squares).sum().sqrt().item() if squares else 0.0
