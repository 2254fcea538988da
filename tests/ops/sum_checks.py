"""What the kernels must do with weighted sums, as functions of a device: see kernel_checks.py. Truth is the plain
reference in fp64 on the same inputs."""

from copy import deepcopy
from dataclasses import fields, replace

import torch
from torch import Tensor, nn

from geonorm.norms import LayerNorm, RMSNorm
from geonorm.ops import WeightedSum, fused_write

from .kernel_tools import HALF, largest_error, sample, within_an_ulp
from .norm_checks import norms, pair_of


def rules(dim: int, device: str) -> list[WeightedSum]:
    """Every kind of weight before every kind of norm, drawn."""
    generator = torch.Generator().manual_seed(dim)
    keep, scale, shift = (torch.rand(3, dim, generator=generator) + 0.2).to(device)
    first, bare, layer, *_, plain = norms(dim, device)
    return [
        WeightedSum(),
        WeightedSum(0.8, -0.6),
        WeightedSum(scale=scale[:1], norm=layer, shift=shift),
        WeightedSum(0.5, 1.5, norm=plain),
        WeightedSum(keep, scale, shift, first),
        WeightedSum(keep[:1].squeeze(), scale, norm=bare),
        WeightedSum(keep, 1.0),
    ]


def tensors(rule: WeightedSum, norm: nn.Module | None) -> list[Tensor]:
    """All that has a gradient besides x and u."""
    weights = [t for t in (getattr(rule, f.name) for f in fields(rule)) if isinstance(t, Tensor)]
    return [*weights, *(p for m in (rule.norm, norm) if m is not None for p in m.parameters())]


def in_double(rule: WeightedSum, norm: nn.Module | None) -> tuple[WeightedSum, nn.Module | None]:
    values = {f.name: getattr(rule, f.name) for f in fields(rule)}
    doubled = {k: v.detach().double().requires_grad_() for k, v in values.items() if isinstance(v, Tensor)}
    return replace(rule, **doubled, norm=deepcopy(rule.norm).double() if rule.norm else None), (
        deepcopy(norm).double() if norm else None
    )


def agree(
    rule: WeightedSum, norm: nn.Module | None, x: Tensor, u: Tensor, grad: Tensor, read: torch.dtype | None = None
) -> None:
    """x', y and all gradients against fp64; y that of the x' in memory."""
    for t in tensors(rule, None):
        t.requires_grad_()
    x, u, grads = x.requires_grad_(), u.requires_grad_(), pair_of(grad, read)
    made = fused_write(x, u, lambda: rule, read or x.dtype, norm)
    assert made is not None
    found = torch.autograd.grad(made, (x, u, *tensors(rule, norm)), grads)
    wide, outer = in_double(rule, norm)
    a, b = (t.detach().double().requires_grad_() for t in (x, u))
    out = wide(a, b)
    y = out if outer is None else outer(out)
    expected = torch.autograd.grad((out, y), (a, b, *tensors(wide, outer)), [g.double() for g in grads])
    seen = made[0].detach().double()
    for value, true in zip(made, (out, seen if outer is None else outer(seen)), strict=True):
        close = within_an_ulp(value, true) if value.dtype in HALF else largest_error(value, true) < 1e-6
        assert close, f"{rule}, then {norm}"
    half = HALF if x.dtype in HALF else (None,)
    for value, true in zip(found, expected, strict=True):
        assert value.shape == true.shape
        limit = 2e-2 if {value.dtype, x.dtype, made[1].dtype} & {*half, *HALF} else 4e-6
        off = (value.double() - true).norm() / (true.norm() + 0.1 * grads[1].double().norm())
        assert off < limit, f"{rule}, then {norm}: {off:.1e}"


def check_sums_of_all_weights_and_norms(device: str) -> None:
    for dim, rows in ((63, 12), (100, 17), (768, 3)):
        for rule in rules(dim, device):
            x, u, grad = sample(rows, dim, device)
            for norm in (None, *norms(dim, device)[: 3 if dim == 63 else 1]):
                agree(rule, norm, x.detach(), u.detach().clamp(-3, 3), grad)


def check_sums_in_every_dtype(device: str) -> None:
    full, (bf16, fp16) = torch.float32, HALF
    for stream, update, read in ((bf16, bf16, bf16), (full, bf16, bf16), (fp16, fp16, None), (bf16, full, None)):
        for rule in rules(100, device)[1:]:
            x, u, grad = sample(9, 100, device, (stream, update))
            agree(rule, RMSNorm(100).to(device), x, u.clamp(-3, 3), grad, read)


def check_sums_over_many_rows(device: str) -> None:
    """More rows than programs, rows of one number, no rows: each gradient of a weight is a sum in a fixed order."""
    rule, norm = rules(2, device)[4], LayerNorm(2).to(device)
    keep = tensors(rule, None)[0].requires_grad_()
    x, u, grad = sample(2500, 2, device)
    results = []
    for _ in range(2):
        made = fused_write(x.requires_grad_(), u.requires_grad_(), lambda: rule, x.dtype, norm)
        results.append(torch.autograd.grad(made, [x, keep, *norm.parameters()], pair_of(grad)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    agree(rules(1, device)[4], None, *sample(5, 1, device))
    empty = torch.zeros(0, 2, device=device, requires_grad=True)
    out, _ = fused_write(empty, empty, lambda: rule)
    assert torch.autograd.grad(out.sum(), keep)[0].eq(0).all() and out.shape == (0, 2)


def check_bad_numbers_of_sums_stay_on_their_row(device: str) -> None:
    x, u, _ = sample(4, 63, device)
    x[1, 0], u[3, 5] = torch.nan, torch.inf
    for rule in rules(63, device)[3:5]:
        out, y = fused_write(x, u, lambda rule=rule: rule, x.dtype, RMSNorm(63).to(device))
        assert y[[1, 3]].isnan().any(-1).all() and out[[0, 2]].isfinite().all() and y[[0, 2]].isfinite().all()


def check_rounding_of_sums_has_no_bias(device: str) -> None:
    """Errors of a bf16 stream over 96 updates add up neither to a shift nor to another length, by kernels or not."""
    rule = WeightedSum(0.998, 0.0632, norm=RMSNorm(128, gains=False).to(device))
    first, *updates = torch.randn(97, 16, 128, generator=torch.Generator().manual_seed(0)).to(device).bfloat16()
    for write in (lambda x, u: fused_write(x, u, lambda: rule)[0], lambda x, u: rule(x, u).bfloat16()):
        x, wide, errors = first, first.double(), []
        for u in updates:
            true = rule(x.double(), u.double())
            x, wide = write(x, u), rule(wide, u.double())
            errors.append(torch.stack((x.double() - true, (x.double() - true) * true.sign())))
        shift, growth = torch.stack(errors).mean((0, 2, 3)).abs() / wide.abs().mean()
        assert shift < 1e-4 and growth < 1e-4, f"{shift:.1e}, {growth:.1e}"
        assert (x.double().norm(dim=-1) / wide.norm(dim=-1) - 1).mean().abs() < 5e-4
