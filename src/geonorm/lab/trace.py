"""The geometry of every residual site of our own models, seen through hooks: x, u and x' of one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .. import sphere
from ..nn.decoder import Decoder
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
    """One row per site for ids (batch, tokens): see `probes.measures`, plus which tokens are clamped, the rotation by
    the site's own norm, and the gradient norm of the branch's weights at this step (keys as `site_key`)."""
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


def watch_rotation(residual: Residual, rotations: dict[int, float | None]) -> list[Any]:
    """Hooks the first norm of a site: the angle between what it is given and what it gives."""
    for name, module in residual.own.named_children():
        if name in ("input", "stream", "output"):

            def hook(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
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
