"""The geometry of every residual site of our own models, seen through hooks: x, u and x' of one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .. import sphere
from ..nn.decoder import Decoder
from ..norms import upcast
from ..probes.measures import mean, step_measures
from ..residual import Residual
from ..schemes import Site

Look = Callable[[Site, Residual, Tensor, Tensor, Tensor], None]


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
def trace(model: Decoder, ids: Tensor, step: int, grad_norms: dict[str, float]) -> list[dict[str, Any]]:
    """One row per site for ids (batch, tokens): see `probes.measures`, plus what the definition predicts (`law`), which
    tokens are clamped, the rotation by the site's own norm, and the gradient norm of the branch's weights at this step
    (keys as `site_key`)."""
    rows: list[dict[str, Any]] = []

    def look(site: Site, residual: Residual, x: Tensor, u: Tensor, after: Tensor) -> None:
        clamped = residual.scheme.clamped(x, u, residual.own, residual.site(x))
        rows.append(
            {
                "step": step,
                "scheme": str(residual.scheme),
                "layer": site.layer,
                "kind": site.kind,
                "t": site.t,
                **step_measures(residual.scheme.seen(x), residual.scheme.seen(after), u),
                "radius_after": mean(sphere.radius(residual.scheme.seen(after).double())),
                **law(residual, x, u),
                "clamped": None if clamped is None else clamped.double().mean().item(),
                "rotation": rotations.pop(id(residual), None),
                "grad_norm": grad_norms.get(site_key(site)),
            }
        )

    rotations: dict[int, float | None] = {}
    handles = [handle for _, residual in model.residuals() for handle in watch_rotation(residual, rotations)]
    was_training = model.training
    model.eval()
    try:
        with watching(model, look):
            model(ids)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return rows


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
        _, carry = scheme.read(x, residual.own, site)
        return scheme.seen(scheme.write(x, u, carry, residual.own, site, h))

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


def watch_rotation(residual: Residual, rotations: dict[int, float | None]) -> list[Any]:
    """Hooks the first norm of a site: the angle between what it is given and what it gives."""
    for name, module in residual.own.named_children():
        if name in ("input", "stream", "output"):

            def hook(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
                if id(residual) in rotations:  # `law` runs the norm once more
                    return
                rotations[id(residual)] = mean(sphere.angle(inputs[0].double(), out.double()))

            return [module.register_forward_hook(hook)]
    return []


def site_key(site: Site) -> str:
    return f"{site.layer}.{site.kind}"


@torch.no_grad()
def branch_grad_norms(model: Decoder) -> dict[str, float]:
    """Gradient norm of each site's branch weights, by `site_key`, before clipping."""
    norms = {}
    for site, residual in model.residuals():
        squares = [p.grad.double().square().sum() for p in residual.branch.parameters() if p.grad is not None]
        norms[site_key(site)] = torch.stack(squares).sum().sqrt().item() if squares else 0.0
    return norms
