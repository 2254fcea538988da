"""What the kernels must do with what the next sub-layer reads, as functions of a device: see kernel_checks.py.

The truth of y is N in fp64 of the x' that the kernel wrote, because N sees the stream as it is in memory; gradients are
compared with the whole of it in fp64."""

import math
from math import inf

import torch
from torch import Tensor, nn

from geonorm import Residual, Site
from geonorm.norms import LayerNorm, RMSNorm, UnitNorm
from geonorm.ops import AngleMap, geodesic_step, geodesic_step_read, launch
from geonorm.ops.available import interpreting

from .kernel_tools import HALF, compare, maps, row_error, sample, special_rows, within_an_ulp

Found = dict[str, Tensor]


def norms(dim: int, device: str, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    """Every norm that is part of a kernel, gains and biases drawn."""
    built: list[nn.Module] = [RMSNorm(dim), RMSNorm(dim, gains=False, eps=1e-3), LayerNorm(dim)]
    built += [LayerNorm(dim, bias=False, eps=1e-5), LayerNorm(dim, gains=False)]
    generator = torch.Generator().manual_seed(dim)
    for norm in built:
        for p in norm.parameters():
            nn.init.normal_(p, mean=0.5, generator=generator)
        norm.to(device, dtype)
    return built


def fused(y: Tensor) -> bool:
    """Whether y came out of a kernel, as it is or cast."""
    node = y.grad_fn
    if "ToCopy" in type(node).__name__:
        node = node.next_functions[0][0]
    return type(node).__name__ == "FusedBackward"  # not PyTorch's FusedRmsNormBackward0


def run(
    x: Tensor, u: Tensor, grads: tuple[Tensor, Tensor], angles: AngleMap, norm: nn.Module, read: torch.dtype | None
) -> Found:
    a, b = x.detach().requires_grad_(), u.detach().requires_grad_()
    out, y = geodesic_step_read(a, b, angles, read, norm=norm)
    assert fused(y) and out.dtype == x.dtype and y.dtype == (read or x.dtype)
    return {"out": out.detach(), "y": y.detach()} | gradients((out, y), grads, a, b, norm)


def truth(x: Tensor, u: Tensor, grads: tuple[Tensor, Tensor], angles: AngleMap, norm: nn.Module, out: Tensor) -> Found:
    """In fp64; y of the x' that was written."""
    kept = {name: p.dtype for name, p in norm.named_parameters()}
    a, b = x.detach().double().requires_grad_(), u.detach().double().requires_grad_()
    norm.double()
    true = geodesic_step(a, b, angles, backend="reference")
    pair = true, norm(true)
    found = {"out": true.detach(), "y": norm(out.double()).detach()}
    found |= gradients(pair, tuple(g.double() for g in grads), a, b, norm)
    for name, p in norm.named_parameters():
        p.data = p.data.to(kept[name])
    return found


def gradients(outputs: tuple[Tensor, ...], grads: tuple[Tensor, ...], x: Tensor, u: Tensor, norm: nn.Module) -> Found:
    own = dict(norm.named_parameters())
    found = torch.autograd.grad(outputs, (x, u, *own.values()), grads)
    return dict(zip(("dx", "du", *(f"norm {name}" for name in own)), found, strict=True))


def conditions(out: Tensor, grads: tuple[Tensor, ...], norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Of each row (..., 1): by how much the norm magnifies rounding in x', and the size of the gradient of x' when
    nothing in it cancels. In rows of one or two numbers almost everything cancels."""
    wide, first, second = (t.double() for t in (out, *grads))
    centred = wide - wide.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else wide
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + norm.eps)
    magnified = (wide.square().mean(-1, keepdim=True).sqrt() * scale).clamp(min=1.0)
    weight = 1.0 if norm.weight is None else norm.weight.detach().double()
    size = first.norm(dim=-1, keepdim=True) + magnified * scale * (weight * second).norm(dim=-1, keepdim=True)
    return magnified, size


def agree(found: Found, true: Found, grads: tuple[Tensor, ...], norm: nn.Module) -> None:
    out, y = found["out"], found["y"]
    compare((out, out, out), (true["out"], out.double(), out.double()))  # x' as without a norm
    magnified, size = conditions(out, grads, norm)
    off = (y.double() - true["y"]).norm(dim=-1, keepdim=True)
    if y.dtype in HALF:
        assert within_an_ulp(y, true["y"]), "y is more than an ulp off"
    else:
        worst = (off / (magnified * true["y"].norm(dim=-1, keepdim=True).clamp(min=1e-30))).max().item()
        assert worst < 1e-6, f"y {worst:.1e}"
    for name in ("dx", "du"):
        a, b = found[name].double(), true[name]
        limit = 1e-2 if found[name].dtype in HALF else 1e-2 if out.dtype in HALF else 2e-6
        worst = ((a - b).norm(dim=-1).max() / torch.maximum(b.norm(dim=-1).max(), size.max())).item()
        assert worst < limit, f"{name} {worst:.1e}"
    for name in found.keys() - {"out", "y", "dx", "du"}:
        a, b = found[name].double(), true[name].double()
        assert found[name].shape == b.shape and torch.isfinite(a).all()
        half = found[name].dtype in HALF or out.dtype in HALF or y.dtype in HALF
        limit = (1e-2 if half else 2e-6) * magnified.max()
        noise = 2e-7 * magnified.max() * grads[1].double().norm()
        assert (a - b).norm() <= limit * b.norm() + noise, f"{name}: {a} not {b}"


def pair_of(grad: Tensor, read: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """The gradient of x' and another one, of y."""
    other = torch.randn(grad.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return grad, other.to(grad.device, read or grad.dtype)


def check_norm_shapes(device: str) -> None:
    for dim in (1, 2, 63, 100, 768, 1000):
        for rows in (1, 17):
            x, u, grad = sample(rows, dim, device)
            if dim == 1:  # nothing moves, and what should vanish is the rounding of u
                u = u.clamp(-1, 1)
            grads, angles = pair_of(grad), AngleMap(post=0.7)
            for norm in norms(dim, device) if (rows, dim) == (17, 63) else norms(dim, device)[:3:2]:
                found = run(x, u, grads, angles, norm, None)
                agree(found, truth(x, u, grads, angles, norm, found["out"]), grads, norm)


def check_norm_sums_over_many_rows(device: str) -> None:
    """More rows than programs: each adds up several tiles, the last of them not full; twice the same bits."""
    dim = 100
    _, rows, warps = launch.settings(dim, backward=True, normed=True)
    place = torch.empty(0, device=device).device
    x, u, grad = sample(2 * rows * launch.programs_for(place, 10**9, warps, False) + 3, dim, device)
    u, grads, angles = u.clamp(-3, 3), pair_of(grad), AngleMap(post=torch.tensor(0.7, device=device))
    norm = norms(dim, device)[2]
    found, again = (run(x, u, grads, angles, norm, None) for _ in range(2))
    agree(found, truth(x, u, grads, angles, norm, found["out"]), grads, norm)
    assert all(torch.equal(found[name], again[name]) for name in found)


def check_norm_with_every_angle_map(device: str) -> None:
    for i, angles in enumerate(maps(device).values()):
        x, u, grad = sample(12, 63, device)
        norm = norms(63, device)[i % 3]
        grads = pair_of(grad)
        found = run(x, u, grads, angles, norm, None)
        agree(found, truth(x, u, grads, angles, norm, found["out"]), grads, norm)


def check_norm_dtypes(device: str) -> None:
    """Streams, updates and readings of one type and of several; gains as wide as the stream, or as narrow as a branch;
    a reading wider than the stream has the digits of the stream, as the norm after the step gives it."""
    full, (bf16, fp16) = torch.float32, HALF
    for stream, update, read, own in (
        (bf16, bf16, bf16, bf16),
        (full, bf16, bf16, full),
        (full, bf16, bf16, bf16),
        (full, full, None, bf16),
        (bf16, full, bf16, full),
        (fp16, fp16, fp16, fp16),
        (full, fp16, fp16, full),
        (bf16, bf16, full, full),
    ):
        for norm in norms(100, device, own)[:3:2]:
            x, u, grad = sample(9, 100, device, (stream, update))
            angles, grads = AngleMap(post=0.5), pair_of(grad, read)
            found = run(x, u, grads, angles, norm, read)
            true = truth(x, u, grads, angles, norm, found["out"])
            if read is not None and read.itemsize > stream.itemsize:
                assert torch.equal(found["y"], found["y"].to(stream).to(read))
                found["y"] = found["y"].to(stream)
            assert (found["dx"].dtype, found["du"].dtype) == (stream, update)
            assert all(found[f"norm {name}"].dtype == own for name, _ in norm.named_parameters())
            agree(found, true, grads, norm)


def check_norm_gradients_of_either(device: str) -> None:
    """Only the stream is used, or only the reading; nothing learned, or only some of it."""
    x, u, grad = sample(9, 64, device)
    first, second = pair_of(grad)
    for norm in norms(64, device)[::2]:
        both = run(x, u, (first, second), AngleMap(post=0.5), norm, None)
        parts = []
        for grads in ((first, 0 * second), (0 * first, second)):
            a, b = x.detach().requires_grad_(), u.detach().requires_grad_()
            outputs = geodesic_step_read(a, b, AngleMap(post=0.5), norm=norm)
            at = 0 if grads[0] is first else 1
            parts.append(torch.autograd.grad(outputs[at], (a, b), grads[at]))
            zeros = run(x, u, grads, AngleMap(post=0.5), norm, None)
            for one, two in zip(parts[-1], (zeros["dx"], zeros["du"]), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
        for i, name in enumerate(("dx", "du")):
            torch.testing.assert_close(parts[0][i] + parts[1][i], both[name], rtol=1e-5, atol=1e-5)
        if isinstance(norm, LayerNorm) and norm.bias is not None:  # half of it is frozen
            norm.bias.requires_grad_(False)
            outputs = geodesic_step_read(x, u, AngleMap(post=0.5), norm=norm)
            (gains,) = torch.autograd.grad(outputs, norm.weight, (first, second))
            torch.testing.assert_close(gains, both["norm weight"], rtol=1e-6, atol=1e-6)
        norm.requires_grad_(False)
        a, b = x.detach().requires_grad_(), u.detach().requires_grad_()
        outputs = geodesic_step_read(a, b, AngleMap(post=0.5), norm=norm)
        for one, name in zip(torch.autograd.grad(outputs, (a, b), (first, second)), ("dx", "du"), strict=True):
            torch.testing.assert_close(one, both[name], rtol=1e-6, atol=1e-6)


def check_layouts(device: str) -> None:
    """Slices, transposed, batched and expanded rows, gradients with stride 0, gains with stride 2."""
    base = sample(48, 30, device)
    wide = torch.randn(80, device=device)
    batched = base[0].reshape(6, 8, 30).transpose(0, 1)
    for x in (base[0][:, 3:23], base[0][::2, :20], base[0].T[:, :40], batched, base[0][:1].expand(48, 30)):
        u = base[1].reshape(-1)[: x.numel()].reshape(x.shape)
        norm = LayerNorm(x.shape[-1]).to(device)
        norm.weight.data = wide[: 2 * x.shape[-1] : 2]
        for reader in (None, norm):
            leaves = [] if reader is None else [norm.weight]
            results = []
            for a, b in ((x, u), (x.contiguous(), u.contiguous())):
                a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
                outputs = geodesic_step_read(a, b, AngleMap(post=0.5), norm=reader)
                results.append((*outputs, *torch.autograd.grad(sum(o.sum() for o in outputs), (a, b, *leaves))))
            for one, two in zip(*results, strict=True):
                if interpreting():
                    assert torch.equal(one, two)
                else:  # a compiler adds rows up in an order that depends on what their strides are multiples of
                    assert (one - two).abs().max() < 1e-6 * two.abs().max()


def check_norm_of_rows_without_a_direction(device: str) -> None:
    """Zero rows, u = 0, u along x, and for LayerNorm rows of one number repeated: finite, and N of what was written."""
    for norm in norms(64, device)[::2]:
        x, u, grad = sample(8, 64, device)
        special_rows(x, u)
        x[5], u[5] = 2.0, 0
        found = run(x, u, pair_of(grad), AngleMap(post=0.7), norm, None)
        assert all(t.isfinite().all() for t in found.values())
        assert found["out"][:2].eq(0).all() and torch.equal(found["out"][2], x[2])
        true = norm(found["out"]).detach()
        torch.testing.assert_close(found["y"], true, rtol=1e-5, atol=1e-5)
        assert found["du"][:2].eq(0).all() and found["du"][2].ne(0).any()


def check_bad_numbers_stay_on_their_row(device: str) -> None:
    def results(x: Tensor, u: Tensor, grad: Tensor, angles: AngleMap, norm: nn.Module | None) -> tuple[Tensor, ...]:
        a, b = x.detach().requires_grad_(), u.detach().requires_grad_()
        outputs = geodesic_step_read(a, b, angles, norm=norm)
        return *outputs, *torch.autograd.grad(outputs, (a, b), pair_of(grad))

    for bad in (math.nan, inf, -inf):
        for norm in (None, *norms(63, device)[::2]):
            for angles in (AngleMap(post=0.5), AngleMap(max_angle=2.0))[: 2 if norm is None else 1]:
                x, u, grad = sample(5, 63, device)
                clean = results(x, u, grad, angles, norm)
                x[1, 0] = bad
                u[3, 5] = bad
                for a, b in zip(results(x, u, grad, angles, norm), clean, strict=True):
                    assert a[[1, 3]].isnan().all()
                    assert torch.equal(a[[0, 2, 4]], b[[0, 2, 4]])


def check_norm_of_extreme_rows(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    radii = torch.tensor([1e-18, 1e-12, 1e-6, 1e-3, 1.0, 1e6, 1e12, 1e15], dtype=torch.float64)[:, None]
    x, u, grad = torch.randn(3, len(radii), 64, generator=generator, dtype=torch.float64)
    x, u, grad = ((t * r).float().to(device) for t, r in ((x, radii), (u, 0.3 * radii), (grad, 1.0)))
    for norm in norms(64, device):
        found = run(x, u, pair_of(grad), AngleMap(), norm, None)
        true = truth(x, u, pair_of(grad), AngleMap(), norm, found["out"])
        assert row_error(found["y"], true["y"]) < 1e-6 and found["dx"].isfinite().all()
        for name in ("dx", "du"):
            assert row_error(found[name], true[name]) < 3e-6, name


def check_shapes_of_any_rank(device: str) -> None:
    for shape in ((0, 5), (2, 0, 3, 5), (5,), (2, 3, 5)):
        for norm in (None, norms(5, device)[2]):
            leaves = [] if norm is None else list(norm.parameters())
            x, u = (torch.zeros(shape, device=device, requires_grad=True) for _ in range(2))
            out, y = geodesic_step_read(x, u, AngleMap(post=0.5), norm=norm)
            dx, du, *sums = torch.autograd.grad(out.sum() + y.sum(), (x, u, *leaves))
            assert out.shape == y.shape == dx.shape == du.shape == shape
            assert x.numel() or all(total.eq(0).all() for total in sums)


def check_norms_that_are_called(device: str) -> None:
    """Rows too wide for one kernel, other norms, and modules that somebody watches: the step, then the norm."""
    x, u, _ = sample(1, launch.MAX_NORM_DIM + 1, device)
    watched, seen = RMSNorm(64).to(device), []
    watched.register_forward_hook(lambda m, args, out: seen.append(out))
    small = sample(3, 64, device)
    for norm, a, b in (
        (RMSNorm(x.shape[-1]).to(device), x, u),
        (UnitNorm(64), *small[:2]),
        (watched, *small[:2]),
        (nn.Identity(), *small[:2]),
    ):
        out, y = geodesic_step_read(a.requires_grad_(), b, AngleMap(), norm=norm)
        assert (y is out or not fused(y)) and "Fused" in type(out.grad_fn).__name__ and torch.equal(y, norm(out))
    assert len(seen) == 2


def check_joined_residuals(device: str) -> None:
    """Within a block one kernel writes the stream and, in the dtype of the next branch, what is read of it, through a
    norm or not: the same numbers as one after the other, which round the output of a norm once more in bf16."""
    variants = [("geonorm", "rms"), ("geonorm(input=norm)", "rms"), ("per_kind(attn=geonorm, mlp=peri)", "layer")]
    sums = "pre pre(input=raw,decay=sqrt) peri(layer_scalar=learned) olmo2 beam muse affine norm_preserving layerscale"
    for scheme, kind in (*variants, *((scheme, "rms") for scheme in sums.split())):
        first, second = (
            Residual(nn.Linear(64, 64, device=device), scheme, Site(1, at, 4), 64, norm=kind).to(device)
            for at in ("attn", "mlp")
        )
        x, _, grad = sample(6, 64, device)
        x.requires_grad_()
        leaves = [x, *first.parameters(), *second.parameters()]
        for dtype, tolerance in ((torch.bfloat16, 2e-2), (torch.float32, 2e-6)):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                middle, (y, carry) = first(x, then=second)
                joined, apart = second(middle, reading=(y, carry)), second(first(x))
            assert middle.dtype == torch.float32 and y.dtype == dtype and carry is None and fused(middle)
            if scheme == "geonorm":
                assert within_an_ulp(y, middle.detach().double())
            assert y.grad_fn is middle.grad_fn or (kind == "rms" and y.dtype == dtype)
            assert row_error(joined, apart) < tolerance
            for a, b in zip(*(torch.autograd.grad(out, leaves, grad) for out in (joined, apart)), strict=True):
                # the gradient of one number is a sum whose terms may cancel: it is judged beside them
                assert (a - b).norm() <= tolerance * (grad if b.numel() == 1 else b).norm()
