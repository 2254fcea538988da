"""The geodesic update: every path against the literal textbook formula in fp64; invariants, degenerate and extreme
rows, dtypes, memory, compilation."""

from __future__ import annotations

import math
from math import inf, pi

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from geonorm import geodesic_update
from geonorm.errors import ConfigError
from geonorm.ops import AngleMap, backends, geodesic_step
from geonorm.ops.angle import BIAS_SOFTNESS

BACKENDS = ("closed", "reference")
CASES = settings(max_examples=25, deadline=None)
SEEDS, DIMS = st.integers(0, 2**20), st.integers(2, 50)


def textbook(x: Tensor, u: Tensor, m: AngleMap) -> Tensor:
    """cos(a) x + sin(a) |x| v/|v|, as written."""
    c = (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
    v = u - c * x
    length, radius = v.norm(dim=-1, keepdim=True), x.norm(dim=-1, keepdim=True)
    ratio = length / radius
    turn = m.pre * ratio if m.power == inf else m.power * torch.atan(m.pre * ratio / m.power)
    turn = m.gain * torch.minimum(turn, torch.tensor(m.max_angle, dtype=x.dtype))
    turn = turn + m.bias * ratio / (ratio**2 + BIAS_SOFTNESS**2) ** 0.5
    angle = torch.minimum(m.post * turn, torch.tensor(m.max_angle, dtype=x.dtype))
    return torch.cos(angle) * x + torch.sin(angle) * radius * v / length


def pair(
    seed: int = 0, count: int = 6, dim: int = 16, ratio: float = 1.0, radius: float = 1.0
) -> tuple[Tensor, Tensor]:
    """x of the given radius, u of |u| = ratio |x|, fp64, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    x, u = torch.randn(2, count, dim, generator=generator, dtype=torch.float64)
    x = radius * x / x.norm(dim=-1, keepdim=True)
    u = ratio * radius * u / u.norm(dim=-1, keepdim=True)
    return x.requires_grad_(), u.requires_grad_()


def relative(found: Tensor, true: Tensor) -> float:
    """Largest error of a row in units of the largest row."""
    size = true.double().norm(dim=-1).max().clamp(min=1e-300)
    return ((found.double() - true.double()).norm(dim=-1).max() / size).item()


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def angle_between(x: Tensor, y: Tensor) -> Tensor:
    a, b = x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


@pytest.mark.parametrize("ratio", [1e-3, 0.3, 3.0, 50.0], ids=lambda r: f"ratio{r}")
@pytest.mark.parametrize("max_angle", [pi / 8, pi / 4, 1.5, pi])
@pytest.mark.parametrize("decay", [1.0, 0.25, 0.01, 2.5, 0.0, -0.4, "tensor", "learned"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_textbook(backend: str, decay: float | str, max_angle: float, ratio: float) -> None:
    if isinstance(decay, str):
        rate: float | Tensor = torch.tensor(1 / 3, dtype=torch.float64, requires_grad=decay == "learned")
    else:
        rate = decay
    x, u = pair(ratio=ratio)
    weights = torch.randn_like(x)
    out = geodesic_update(x, u, decay=rate, max_angle=max_angle, backend=backend)
    true = textbook(x, u, AngleMap(post=rate, max_angle=max_angle))
    assert relative(out, true) < 1e-12
    wanted = (x, u, rate) if decay == "learned" else (x, u)
    found = torch.autograd.grad((out * weights).sum(), wanted)
    expected = torch.autograd.grad((true * weights).sum(), wanted)
    for name, a, b in zip(("x", "u", "decay"), found, expected, strict=False):
        # the small constant is for gradients whose true value is 0
        assert ((a - b).abs().max() / (b.abs().max() + 1e-3)).item() < 1e-11, name


MAPS = {
    "plain": lambda: AngleMap(),
    "pre": lambda: AngleMap(pre=0.4),
    "pre tensor": lambda: AngleMap(pre=scalar(0.4)),
    "post": lambda: AngleMap(post=0.4),
    "gain": lambda: AngleMap(gain=scalar(1.3), post=0.5),
    "gain over the clamp": lambda: AngleMap(gain=scalar(1.3)),
    "affine": lambda: AngleMap(gain=scalar(0.8), bias=scalar(0.05), post=0.7),
    "bias": lambda: AngleMap(bias=0.1),
    "projection": lambda: AngleMap(power=1.0, post=0.5),
    "projection, update": lambda: AngleMap(power=1.0, pre=0.5, max_angle=1.2),
    "cayley": lambda: AngleMap(power=2.0, max_angle=pi / 8),
    "power 3.7": lambda: AngleMap(power=3.7, max_angle=2.5),
    "everything": lambda: AngleMap(scalar(0.9), scalar(0.6), scalar(1.1), scalar(0.03), 0.7, 1.5),
}


@pytest.mark.parametrize("ratio", [0.02, 0.5, 2.0, 40.0], ids=lambda r: f"ratio{r}")
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_angle_map_equals_the_textbook(backend: str, name: str, ratio: float) -> None:
    angles = MAPS[name]()
    learned = [p for p in (angles.pre, angles.post, angles.gain, angles.bias) if isinstance(p, Tensor)]
    x, u = pair(ratio=ratio)
    weights = torch.randn_like(x)
    out, true = geodesic_step(x, u, angles, backend=backend), textbook(x, u, angles)
    assert relative(out, true) < 1e-12
    wanted = (x, u, *learned)
    found = torch.autograd.grad((out * weights).sum(), wanted)
    expected = torch.autograd.grad((true * weights).sum(), wanted)
    for a, b in zip(found, expected, strict=True):
        assert ((a - b).abs().max() / (b.abs().max() + 1e-3)).item() < 1e-11


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["free", "clamped", "u = 0", "u parallel to x", "mixed"])
@pytest.mark.parametrize("name", ["plain", "post", "pre", "gain", "cayley"])
def test_gradcheck(name: str, case: str, backend: str) -> None:
    angles = MAPS[name]()
    x, u = pair(count=3, dim=4, ratio={"free": 0.3, "clamped": 5.0}.get(case, 0.5))
    if case == "u = 0":
        u = torch.zeros_like(x, requires_grad=True)
    elif case == "u parallel to x":
        u = (-1.7 * x).detach().requires_grad_()
    elif case == "mixed":
        u = (u * torch.tensor([[0.0], [1.0], [20.0]])).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: geodesic_step(a, b, angles, backend=backend), (x, u))


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_are_right_or_refused(backend: str) -> None:
    x, u = pair(count=2, dim=3, ratio=0.4)
    if backend == "reference":
        assert torch.autograd.gradgradcheck(lambda a, b: geodesic_update(a, b, backend=backend), (x, u))
    else:
        (first,) = torch.autograd.grad(geodesic_update(x, u, backend=backend).square().sum(), u, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("angles", [AngleMap(), AngleMap(pre=0.5), AngleMap(post=0.3, power=1.0)])
def test_rows_without_a_direction(angles: AngleMap, backend: str, dtype: torch.dtype) -> None:
    x, u = (t.detach().to(dtype) for t in pair(count=4))
    x[0] = 0  # no tangent space
    x[1] = u[1] = 0
    u[2] = 0  # no update
    x.requires_grad_(), u.requires_grad_()
    out = geodesic_step(x, u, angles, backend=backend)
    assert out[:2].eq(0).all() and torch.equal(out[2], x[2]) and not torch.equal(out[3], x[3])
    out.backward(torch.ones_like(out))
    assert x.grad is not None and u.grad is not None
    assert x.grad.isfinite().all() and u.grad.isfinite().all()
    assert u.grad[:2].eq(0).all() and u.grad[2].ne(0).any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("factor", [1.0, -1.0, 3.0, 1e4, -1e4])
def test_a_parallel_update_moves_nothing(factor: float, backend: str) -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    out = geodesic_update(x, factor * x, backend=backend)
    assert relative(out, x) < 3e-7 * max(1.0, abs(factor))
    assert (out.double().norm(dim=-1) / x.double().norm(dim=-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [math.nan, inf, -inf])
@pytest.mark.parametrize("angles", [AngleMap(post=0.5), AngleMap(power=1.0), AngleMap(max_angle=2.0)])
def test_nan_and_inf_stay_on_their_own_row(angles: AngleMap, bad: float, backend: str) -> None:
    def run(poisoned: bool) -> tuple[Tensor, ...]:
        x, u = (t.detach().float() for t in pair(count=5, ratio=2.0))
        if poisoned:
            x[1, 0] = bad
            u[3, 5] = bad
        x.requires_grad_(), u.requires_grad_()
        out = geodesic_step(x, u, angles, backend=backend)
        return out, *torch.autograd.grad(out.sum(), (x, u))

    for found, clean in zip(run(True), run(False), strict=True):
        assert found[[1, 3]].isnan().all()
        assert torch.equal(found[[0, 2, 4]], clean[[0, 2, 4]])


RADII = (1e-18, 1e-12, 1e-6, 1.0, 1e6, 1e12, 1e15)
RATIOS = (1e-18, 1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e9, 1e15)


@pytest.mark.parametrize("radius", RADII, ids=lambda r: f"radius{r:g}")
@pytest.mark.parametrize("ratio", RATIOS, ids=lambda r: f"ratio{r:g}")
@pytest.mark.parametrize("decay", [1.0, 0.05])
def test_extreme_rows_in_fp32(decay: float, ratio: float, radius: float) -> None:
    if radius * ratio > 1e18:
        pytest.skip("the square of u is not an fp32 number")
    x, u = (t.detach().float() for t in pair(dim=64, ratio=ratio, radius=radius))
    x.requires_grad_(), u.requires_grad_()
    out = geodesic_update(x, u, decay=decay)
    true = textbook(x.double(), u.double(), AngleMap(post=decay))
    assert (out.double().norm(dim=-1) / x.double().norm(dim=-1) - 1).abs().max() < 1e-6
    assert relative(out, true) < 1e-6
    du = torch.autograd.grad(out, u, torch.randn_like(out), retain_graph=True)[0]
    dx = torch.autograd.grad(out, x, torch.randn_like(out))[0]
    assert du.isfinite().all() and dx.isfinite().all()


@pytest.mark.parametrize("sine", [1e-1, 1e-2, 1e-3])
def test_fp32_gradients_where_x_and_u_are_nearly_parallel(sine: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 256, generator=generator)
    u = 3 * x + 3 * sine * torch.randn(64, 256, generator=generator)
    weights = torch.randn(64, 256, generator=generator)
    gradients = []
    for dtype, backend in ((torch.float32, "auto"), (torch.float64, "reference")):
        a, b = x.to(dtype).requires_grad_(), u.to(dtype).requires_grad_()
        out = geodesic_update(a, b, decay=0.5, max_angle=1e-3, backend=backend)
        gradients.append(torch.autograd.grad((out * weights).sum(), (a, b)))
    for found, true in zip(*gradients, strict=True):
        assert relative(found, true) < 5e-6 / sine


def test_fp32_radius_drift() -> None:
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(0))
    start = before = x.double().norm(dim=-1)
    for step in range(256):
        u = torch.randn(16, 256, generator=torch.Generator().manual_seed(step + 1))
        x = geodesic_update(x, u, decay=1 / (step // 2 + 1))
        now = x.double().norm(dim=-1)
        assert (now / before - 1).abs().max() < 1e-6
        before = now
    assert (before / start - 1).abs().max() < 5e-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("stream", "update"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float16),
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
    ],
)
def test_mixed_dtypes(stream: torch.dtype, update: torch.dtype, backend: str) -> None:
    x, u = pair(dim=64, ratio=0.7)
    x, u = x.detach().to(stream).requires_grad_(), u.detach().to(update).requires_grad_()
    weights = torch.randn(x.shape, dtype=torch.float64).to(stream)
    out = geodesic_update(x, u, decay=0.5, backend=backend)
    wide_x, wide_u = x.detach().double().requires_grad_(), u.detach().double().requires_grad_()
    true = textbook(wide_x, wide_u, AngleMap(post=0.5))
    assert out.dtype == stream
    half_ulp = 0.5 * torch.finfo(stream).eps if stream == torch.bfloat16 else 0.0
    torch.testing.assert_close(out.double(), true, rtol=1.01 * half_ulp + 1e-6, atol=1e-6)
    found = torch.autograd.grad(out, (x, u), weights)
    expected = torch.autograd.grad(true, (wide_x, wide_u), weights.double())
    assert [g.dtype for g in found] == [stream, update]
    coarse = torch.bfloat16 in (stream, update)
    for a, b in zip(found, expected, strict=True):
        assert relative(a, b) < (1e-2 if coarse else 1e-3 if update == torch.float16 else 2e-6)


@CASES
@given(SEEDS, DIMS, st.floats(0.01, 20), st.floats(0.01, 2), st.floats(0.05, 3), st.floats(-30, 30))
def test_invariants(seed: int, dim: int, ratio: float, decay: float, max_angle: float, along: float) -> None:
    x, u = pair(seed, 4, dim, ratio, radius=2.0)

    def update(x: Tensor, u: Tensor) -> Tensor:
        return geodesic_update(x, u, decay=decay, max_angle=max_angle)

    out = update(x, u)
    c = (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
    tangential = (u - c * x).norm(dim=-1) / x.norm(dim=-1)
    angle = (decay * tangential.clamp(max=max_angle)).clamp(max=max_angle)
    assert torch.allclose(out.norm(dim=-1), x.norm(dim=-1), rtol=1e-14)
    assert torch.allclose(angle_between(x, out), angle, atol=1e-12)
    torch.testing.assert_close(update(x, u + along * x), out, rtol=0, atol=1e-10)
    torch.testing.assert_close(update(3 * x, 3 * u), 3 * out, rtol=0, atol=1e-12)
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64)).Q
    torch.testing.assert_close(update(x @ rotation, u @ rotation), out @ rotation, rtol=0, atol=1e-10)
    (gradient,) = torch.autograd.grad(out, u, torch.randn_like(out))
    assert ((gradient * x).sum(-1).abs() <= 1e-12 * (1 + gradient.norm(dim=-1))).all()


def test_bias_is_the_papers_constant_above_a_percent() -> None:
    x, u = pair(ratio=0.3)
    soft, plain = (angle_between(x, geodesic_step(x, u, AngleMap(bias=bias))) for bias in (0.05, 0.0))
    torch.testing.assert_close(soft - plain, torch.full_like(soft, 0.05), rtol=1e-4, atol=0)
    still = torch.zeros_like(x)
    assert torch.equal(geodesic_step(x, still, AngleMap(bias=0.05)), x)


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16])
def test_saves_inputs_and_three_scalars_a_row(stream: torch.dtype) -> None:
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.data_ptr()] = t.numel() * t.element_size()
        return t

    x = torch.randn(7, 64).to(stream).requires_grad_()
    u = torch.randn(7, 64, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = geodesic_update(x, u, decay=0.5, backend="closed")
    assert out.requires_grad
    assert {x.data_ptr(), u.data_ptr()} < set(saved)
    assert sum(saved.values()) == x.numel() * x.element_size() + u.numel() * 2 + 7 * 3 * 4


@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 3, 5), (2, 0, 3, 5), (4, 1), (1,)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes(shape: tuple[int, ...], backend: str) -> None:
    x, u = torch.randn(2, *shape, dtype=torch.float64)
    x.requires_grad_(), u.requires_grad_()
    out = geodesic_update(x, u, backend=backend)
    out.sum().backward()
    assert x.grad is not None and u.grad is not None
    assert out.shape == x.grad.shape == u.grad.shape == shape
    if shape[-1] == 1:  # the sphere is two points: nothing moves
        torch.testing.assert_close(out, x)
    else:
        torch.testing.assert_close(out, textbook(x, u, AngleMap()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_layout_of_memory_does_not_matter(backend: str) -> None:
    base = torch.randn(2, 3, 16, 5, dtype=torch.float64)
    x, u = base.transpose(-1, -2)
    expanded = u[:, :1].expand(-1, 5, -1)
    for update in (u, expanded, torch.randn(3, 5, 32, dtype=torch.float64)[..., ::2]):
        assert not update.is_contiguous()
        torch.testing.assert_close(
            geodesic_update(x, update, backend=backend),
            geodesic_update(x.contiguous(), update.contiguous(), backend=backend),
            rtol=1e-14,
            atol=1e-14,
        )


def test_inputs_are_not_written_to() -> None:
    x, u = (t.detach() for t in pair())
    x.requires_grad_(), u.requires_grad_()
    copies = x.clone(), u.clone()
    weights = torch.randn_like(x)
    kept = weights.clone()
    geodesic_update(x, u).backward(weights)
    assert torch.equal(x, copies[0]) and torch.equal(u, copies[1]) and torch.equal(weights, kept)


# torch's own compiler makes an instance of autograd functions
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")
def test_compiles_to_one_graph_for_all_depths() -> None:
    def step(x: Tensor, u: Tensor, decay: Tensor) -> Tensor:
        return geodesic_update(x, u, decay=decay)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    x, u = (t.detach().float().requires_grad_() for t in pair())

    def both(decay: Tensor) -> None:
        eager, fast = step(x, u, decay), compiled(x, u, decay)
        torch.testing.assert_close(fast, eager, rtol=1e-6, atol=1e-6)
        pairs = (torch.autograd.grad(out.square().sum() + out[0, 0], (x, u)) for out in (eager, fast))
        for a, b in zip(*pairs, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)

    both(torch.tensor(1.0))
    with torch.compiler.set_stance("fail_on_recompile"):
        both(torch.tensor(0.5))
        both(torch.tensor(1 / 3))


def test_activation_checkpointing() -> None:
    x, u = pair()
    plain = torch.autograd.grad(geodesic_update(x, u, decay=0.5).sum(), (x, u))
    out = checkpoint(lambda a, b: geodesic_update(a, b, decay=0.5), x, u, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(out.sum(), (x, u)), plain, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("ratio", [0.3, 4.0, 0.0])
def test_velocity_in_h_is_the_angle_along_v(ratio: float) -> None:
    x, u = (t.detach() for t in pair(ratio=ratio))
    angles = AngleMap(post=0.5)
    zero = torch.zeros((), dtype=torch.float64)
    start, velocity = torch.func.jvp(lambda h: geodesic_step(x, u, angles, h), (zero,), (torch.ones_like(zero),))
    c = (x * u).sum(-1, keepdim=True)  # |x| = 1
    v = u - c * x
    length = v.norm(dim=-1, keepdim=True)
    expected = 0.5 * torch.where(length > pi / 4, pi / 4 * v / length.clamp(min=1e-300), v)
    torch.testing.assert_close(start, x)
    torch.testing.assert_close(velocity, expected, rtol=1e-12, atol=1e-12)


def test_forward_mode_of_the_reference_equals_backward_mode() -> None:
    x, u = (t.detach() for t in pair(count=1, dim=4, ratio=0.4))
    assert torch.autograd.gradcheck(
        lambda a, b: geodesic_update(a, b, backend="reference"),
        (x.requires_grad_(), u.requires_grad_()),
        check_forward_ad=True,
        check_backward_ad=False,
    )


@pytest.mark.parametrize("h", [0.0, 0.5, 2.0])
def test_h_scales_the_angle(h: float) -> None:
    x, u = pair(ratio=0.3)
    full = geodesic_step(x, u, AngleMap())
    for step in (h, torch.tensor(h, dtype=torch.float64)):
        out = geodesic_step(x, u, AngleMap(), step)
        torch.testing.assert_close(angle_between(x, out), h * angle_between(x, full), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"u": torch.ones(3, 5)}, "one shape"),
        ({"u": torch.ones(4)}, "one shape"),
        ({"x": torch.tensor(1.0), "u": torch.tensor(1.0)}, "one shape"),
        ({"x": torch.ones(3, 4, dtype=torch.int64)}, "floating-point"),
        ({"u": torch.ones(3, 4, dtype=torch.bool)}, "floating-point"),
        ({"max_angle": 0.0}, "max_angle"),
        ({"max_angle": -1.0}, "max_angle"),
        ({"max_angle": 3.2}, "max_angle"),
        ({"max_angle": math.nan}, "max_angle"),
        ({"backend": "refernce"}, "did you mean 'reference'"),
    ],
)
def test_bad_arguments_are_one_line(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        geodesic_update(**({"x": torch.ones(3, 4), "u": torch.ones(3, 4)} | arguments))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_environment_chooses_what_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(backend: str = "auto") -> str:
        x, u = pair()
        return type(geodesic_update(x, u, backend=backend).grad_fn).__name__

    closed, reference = path("closed"), path("reference")
    assert closed != reference
    monkeypatch.delenv("GEONORM_BACKEND", raising=False)
    assert path() == closed and backends()["auto"] == "closed"
    monkeypatch.setenv("GEONORM_BACKEND", "reference")
    assert path() == reference and path("closed") == closed and backends()["auto"] == "reference"
    monkeypatch.setenv("GEONORM_BACKEND", "fast")
    with pytest.raises(ConfigError, match="unknown backend 'fast'"):
        path()
