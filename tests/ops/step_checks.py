"""What every path of the geodesic step must do, as functions of a device. GEONORM_BACKEND says which path is taken; the
truth is the reference in fp64 on the same inputs."""

import math
from math import pi

import torch

from geonorm import Residual, Site
from geonorm.norms import RMSNorm
from geonorm.ops import AngleMap, geodesic_step, geodesic_step_read

from .kernel_tools import HALF, compare, largest_error, maps, row_error, run, sample, special_rows, truth, within_an_ulp


def check_shapes(device: str) -> None:
    for dim in (1, 2, 63, 100, 768, 1000):
        for rows in (1, 3, 17):
            inputs = sample(rows, dim, device)
            found, true = run(*inputs, AngleMap(post=0.7)), truth(*inputs, AngleMap(post=0.7))
            if dim == 1:  # the sphere is two points: nothing moves, and the true gradient of u is 0
                assert torch.allclose(found[0], inputs[0], rtol=1e-6)
                # what goes along c = u / x comes back along it, and leaves the rounding of c and of its square
                x, u, grad = inputs
                c = (u / x).abs()
                assert ((found[1] - grad).abs() <= 2.0**-23 * (4 * (1 + c) + c * c) * grad.abs()).all()
                assert found[2].abs().max() < 1e-5
            else:
                compare(found, true)


def check_every_angle_map(device: str) -> None:
    for name, angles in maps(device).items():
        inputs = sample(12, 63, device)
        try:
            compare(run(*inputs, angles), truth(*inputs, angles))
        except AssertionError as error:
            raise AssertionError(f"map {name}: {error}") from None


def check_dtypes(device: str) -> None:
    full, (bf16, fp16) = torch.float32, HALF
    for types in ((bf16, bf16), (full, bf16), (bf16, full), (fp16, fp16), (full, fp16)):
        for angles in (AngleMap(post=0.5), AngleMap(post=torch.tensor(0.9, device=device))):
            inputs = sample(9, 100, device, types)
            found = run(*inputs, angles)
            assert [t.dtype for t in found[:3]] == [types[0], *types]
            compare(found, truth(*inputs, angles))


def check_rounding_has_no_bias(device: str) -> None:
    """Numbers stored in bf16 are rounded to nearest: cut off, results would be shorter by 2.8e-3 on average, and 24
    updates would shorten x by 6 %. Rounding to nearest leaves 1e-5 of 8192 numbers, and lengthens x by half the square
    of its error, 1e-6, in each update."""
    bf16, angles = torch.bfloat16, AngleMap(post=0.5)
    x, grad, *updates = torch.randn(26, 64, 128, generator=torch.Generator().manual_seed(0)).to(device)
    half = [each.to(bf16) for each in (x, updates[0], grad)]
    pairs = dict(zip(("out", "dx", "du"), zip(run(*half, angles), truth(*half, angles), strict=True), strict=True))
    true = geodesic_step(x.double(), updates[0].double(), angles, backend="reference")
    for name, norm in (("read", None), ("norm", RMSNorm(128, gains=False).to(device))):
        found = geodesic_step_read(x, updates[0], angles, bf16, norm=norm)[1]
        pairs[name] = found, true if norm is None else norm(true)
    for name, (found, true) in pairs.items():
        bias = ((found.double() - true) * true).sum() / true.square().sum()
        assert found.dtype == bf16 and abs(bias) < 1e-4, f"{name}: {bias:.1e}"
    for dtype, limit in ((torch.float32, 1e-6), (bf16, 5e-4)):
        stream = start = x.to(dtype)
        for step, u in enumerate(updates):
            stream = geodesic_step(stream, u.to(dtype), AngleMap(post=1 / (step // 2 + 1)))
        drift = (stream.double().norm(dim=-1) / start.double().norm(dim=-1) - 1).mean()
        assert abs(drift) < limit, f"|x| drifts by {drift:.1e} in {dtype}"


def check_two_outputs(device: str) -> None:
    """The stream and what the next sub-layer reads: gradients of both, of either, and one memory for equal dtypes."""
    full, half = torch.float32, torch.bfloat16
    for stream, update, read in ((full, half, half), (full, full, None), (half, half, half)):
        x, u, grad = sample(9, 64, device, (stream, update))
        x.requires_grad_(), u.requires_grad_()
        post = torch.tensor(0.6, device=device)
        second = torch.randn(grad.shape, generator=torch.Generator().manual_seed(1)).to(device, read or stream)
        out, y = geodesic_step_read(x, u, AngleMap(post=post), read)
        assert y.dtype == (read or stream) and within_an_ulp(y, out.detach().double())
        assert (y.data_ptr() == out.data_ptr()) == (y.dtype == stream)
        wide = [t.detach().double().requires_grad_() for t in (x, u)]
        true = geodesic_step(*wide, AngleMap(post=post), backend="reference")
        for outputs, incoming in (((out, y), (grad, second)), ((out,), (grad,)), ((y,), (second,))):
            found = torch.autograd.grad(outputs, (x, u), incoming, retain_graph=True)
            total = sum(g.double() for g in incoming)
            expected = torch.autograd.grad(true, wide, total, retain_graph=True)
            compare((out.detach(), *found), (true.detach(), *expected))


def check_rows_without_a_direction(device: str) -> None:
    for angles in (AngleMap(), AngleMap(post=0.3)):
        x, u, grad = sample(10, 64, device)
        special_rows(x, u)
        x[7:] *= torch.tensor([[1e-20], [1e-21], [1e-30]], device=device)  # <x,x> is no normal number
        u[8:] *= 1e-21
        out, dx, du = run(x, u, grad, angles)
        assert out[:2].eq(0).all() and torch.equal(out[2], x[2])
        assert row_error(out[3:4], x[3:4]) < 3e-7 and row_error(out[4:5], x[4:5]) < 3e-3
        assert torch.equal(out[7:], x[7:]) and torch.equal(dx[7:], grad[7:]) and du[7:].eq(0).all()
        assert (out[2:].double().norm(dim=-1) / x[2:].double().norm(dim=-1) - 1).abs().max() < 1e-6
        assert dx.isfinite().all() and du.isfinite().all()
        assert du[:2].eq(0).all() and torch.equal(dx[:2], grad[:2]) and du[2].ne(0).any()
        closed = run(x, u, grad, angles, "closed")
        keep = [0, 1, 2, 5, 6, 7, 8, 9]
        for a, b in zip((out, dx, du), closed, strict=True):
            assert largest_error(a[keep], b[keep]) < 2e-6


def check_one_angle_without_a_direction(device: str) -> None:
    """Rows that are 0 or have no update stay; their gradients are large, finite, and those of the closed form."""
    for angles in (AngleMap().level(), AngleMap(post=0.3, power=1.0).level()):
        x, u, grad = sample(8, 64, device)
        x[0] = x[1] = u[1] = u[2] = 0
        u[3] *= 1e-3 * x[3].norm() / u[3].norm()
        x[7] *= 1e-20
        out, dx, du = run(x, u, grad, angles)
        assert out[:2].eq(0).all() and torch.equal(out[2], x[2]) and torch.equal(out[7], x[7])
        assert torch.equal(dx[[0, 1, 7]], grad[[0, 1, 7]]) and du[[0, 1, 7]].eq(0).all()
        assert du[2].norm() > 100 * du[4].norm() and du.isfinite().all()
        for found, true in zip((out, dx, du), run(x, u, grad, angles, "closed"), strict=True):
            for row in range(8):
                assert largest_error(found[row : row + 1], true[row : row + 1]) < 5e-6, row


def check_extreme_rows(device: str) -> None:
    pairs = [
        (radius, ratio)
        for radius in (1e-18, 1e-12, 1e-6, 1.0, 1e6, 1e12, 1e15)
        for ratio in (1e-18, 1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e9, 1e15)
        if radius * ratio <= 1e18
    ]
    generator = torch.Generator().manual_seed(0)
    x, u, grad = torch.randn(3, len(pairs), 64, generator=generator, dtype=torch.float64)
    radius, ratio = (torch.tensor(column, dtype=torch.float64)[:, None] for column in zip(*pairs, strict=True))
    x, u = radius * x / x.norm(dim=-1, keepdim=True), radius * ratio * u / u.norm(dim=-1, keepdim=True)
    x, u, grad = (t.float().to(device) for t in (x, u, grad))
    for angles in (AngleMap(), AngleMap(post=0.05)):
        out, dx, du = run(x, u, grad, angles)
        assert row_error(out, truth(x, u, grad, angles)[0]) < 1e-6
        assert (out.double().norm(dim=-1) / x.double().norm(dim=-1) - 1).abs().max() < 1e-6
        assert dx.isfinite().all() and du.isfinite().all()


def check_nearly_parallel(device: str) -> None:
    """The angle survives cancellation, also in bf16 inputs, whose difference is exact in fp32."""
    generator = torch.Generator().manual_seed(0)
    x, noise, grad = torch.randn(3, 4, 256, generator=generator)
    angles = AngleMap(post=0.5, max_angle=1e-3)
    for sine in (1e-1, 1e-2, 1e-3):
        inputs = [t.to(device) for t in (x, 3 * x + 3 * sine * noise, grad)]
        found, true = run(*inputs, angles), truth(*inputs, angles)
        assert row_error(found[0], true[0]) < 1e-6
        for a, b in zip(found[1:], true[1:], strict=True):
            assert largest_error(a, b) < 5e-6 / sine
    inputs = [t.bfloat16().to(device) for t in (x, 3 * x + 0.03 * noise, grad)]
    compare(run(*inputs, AngleMap(post=0.5)), truth(*inputs, AngleMap(post=0.5)))


def check_around_the_clamp(device: str) -> None:
    """Ratios within a few ulp of the clamp: the output is continuous there."""
    x = torch.tensor([[1.0, 0.0]]).repeat(9, 1)
    u = torch.tensor([[0.0, pi / 4 * (1 + k * 1.2e-7)] for k in range(-4, 5)])
    out = geodesic_step(x.to(device), u.to(device), AngleMap()).double().cpu()
    assert (out - math.sqrt(0.5)).abs().max() < 1e-6


def check_autocast(device: str) -> None:
    """An fp32 stream beside a bf16 branch: the stream stays fp32, the branch's gradient comes in bf16."""
    linear = torch.nn.Linear(64, 64, bias=False, device=device)
    residual = Residual(linear, "geonorm", Site(1, "mlp", 4), 64).to(device)
    x, _, grad = sample(6, 64, device)
    x.requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        out = residual(x)
    assert out.dtype == torch.float32 and "Fused" in type(out.grad_fn).__name__
    dx, dw = torch.autograd.grad(out, (x, linear.weight), grad)
    u = (x.detach().bfloat16() @ linear.weight.detach().bfloat16().T).double()
    true = geodesic_step(x.detach().double(), u, AngleMap(post=0.5), backend="reference")
    assert row_error(out, true) < 1e-4 and dx.dtype == dw.dtype == torch.float32
    assert dx.isfinite().all() and dw.ne(0).any()


def check_a_step_that_grows(device: str) -> None:
    """A share of the angle is a decay that the kernel reads from memory."""
    residual = Residual(torch.nn.Identity(), "prores(geonorm, steps=3)", Site(1, "mlp", 4), 64).to(device)
    for steps in range(0, 8, 2):  # six steps until the second block makes whole ones
        residual.own.get_buffer("progress.done").fill_(steps)
        x, u, grad = sample(6, 64, device)
        angles = residual.scheme.angles(residual.own(), residual.site(x))
        assert angles is not None and isinstance(angles.post, torch.Tensor)
        found = run(x, u, grad, angles)
        inputs = [t.double().requires_grad_() for t in (x, u)]
        h = torch.tensor(min(steps / 6, 1.0), dtype=torch.float64, device=device)
        true = geodesic_step(*inputs, AngleMap(post=0.5), h, backend="reference")
        compare(found, (true, *torch.autograd.grad(true, inputs, grad.double())))
        with torch.no_grad():
            assert row_error(geodesic_step(x, u, angles), true) < 1e-5
