"""Derivatives of the geodesic update, of first and second order, backward, forward and under transforms."""

from math import pi

import pytest
import torch

from geonorm import geodesic_update
from geonorm.ops import AngleMap, geodesic_step

from ..rows import each
from .geodesic_cases import BACKENDS, MAPS, pair


@each("backend", BACKENDS)
@each("case", ["free", "clamped", "u = 0", "u parallel to x", "mixed"])
@each("name", ["plain", "post", "pre", "gain", "cayley"])
def test_gradcheck(name: str, case: str, backend: str) -> None:
    angles = MAPS[name]()
    x, u = pair(count=3, dim=4, ratio={"free": 0.3, "clamped": 5.0}.get(case, 0.5))
    special = {"u = 0": 0 * x, "u parallel to x": -1.7 * x, "mixed": u * torch.tensor([[0.0], [1.0], [20.0]])}
    u = special.get(case, u).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: geodesic_step(a, b, angles, backend=backend), (x, u))


@each("backend", BACKENDS)
@each("ratio", [0.0, 1e-120, 0.4, 2.0])
@each("angles", [AngleMap(post=0.5), AngleMap(power=2.0, pre=0.7, max_angle=0.6)])
def test_second_derivatives(angles: AngleMap, ratio: float, backend: str) -> None:
    """Where nothing moves too: u = 0 is how a model with empty output projections starts."""
    x, u = pair(count=2, dim=3, ratio=1.0)
    x, u = x.detach().requires_grad_(), (ratio * u).detach().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda a, b: geodesic_step(a, b, angles, backend=backend), (x, u))


def test_the_quotient_is_the_angle_over_the_ratio() -> None:
    ratio = torch.logspace(-3, 2, 200, dtype=torch.float64)
    for angles in (AngleMap(), AngleMap(post=2.5, max_angle=0.6), AngleMap(0.9, 0.6, 1.1, 0.03, 0.7, 1.5)):
        torch.testing.assert_close(angles.quotient(ratio**2) * ratio, angles(ratio), rtol=1e-13, atol=0)


def test_a_learned_decay_may_have_a_dimension() -> None:
    x, u = pair(count=3)
    found = []
    for shape in ((), (1,), (1, 1, 1)):
        decay = torch.full(shape, 0.5, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(geodesic_update(x, u, decay=decay).pow(3).sum(), decay)
        assert slope.shape == shape
        found.append(slope.sum())
    assert found[0] == found[1] == found[2]


def test_mapped_rows_take_the_path_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEONORM_BACKEND", "closed")
    x, u = (t.detach() for t in pair(count=3))
    for axis, other, of_other in ((0, u, 0), (1, u[0], None)):
        step = torch.func.vmap(geodesic_update, in_dims=(axis, of_other))
        y = torch.func.vmap(step)(x.movedim(0, axis)[None].requires_grad_(), other[None])
        assert "ClosedForm" in str(y.grad_fn)
        torch.testing.assert_close(y[0], geodesic_update(x, other.expand_as(x), backend="reference"))


def test_a_gradient_within_a_vmap_sees_what_the_rows_share() -> None:
    x, u = (t.detach() for t in pair(count=3))

    def slope(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.func.jacrev(lambda decay: geodesic_update(x, u, decay=decay))(torch.tensor(0.5, dtype=x.dtype))

    torch.testing.assert_close(torch.func.vmap(slope)(x, u), slope(x, u))


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


def test_the_slope_of_the_angle_is_0_from_its_clamp_on() -> None:
    for gain in (1.0, torch.tensor(1.0)):
        slope, *_ = AngleMap(gain=gain, max_angle=1.0).chain_rule(torch.tensor([[0.995], [1.005]]), torch.ones(2, 1))
        assert slope.tolist() == [[1.0], [0.0]]


@each("backend", ["closed", "reference"])
@each("dtype", [torch.float32, torch.float64])
@each("bias", [None, 0.0])
def test_a_gain_of_one_at_the_clamp_has_no_gradient(backend: str, dtype: torch.dtype, bias: float | None) -> None:
    """As in the first block at first, where both minima meet: rounding decides nothing; a batch and its parts agree."""
    x, u, grad = torch.randn(3, 500, 16, generator=torch.Generator().manual_seed(0), dtype=dtype)
    u = u * torch.linspace(0.4, 3, 500, dtype=dtype)[:, None]
    gain = torch.ones((), dtype=dtype, requires_grad=True)
    plus = None if bias is None else torch.full((), bias, dtype=dtype, requires_grad=True)
    angles = AngleMap(gain=gain, bias=0.0 if plus is None else plus)
    v = u - (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x
    held = (v.norm(dim=-1) / x.norm(dim=-1)) >= angles.max_angle
    assert 300 < held.sum() < 480
    learned = (gain,) if plus is None else (gain, plus)
    for rows, known in ((held, False), (~held, True)):
        out = geodesic_step(x[rows].requires_grad_(), u[rows], angles, backend=backend)
        found = torch.autograd.grad(out, learned, grad[rows])
        assert all(bool(g.abs() > 0) is known for g in found)
        assert not out._is_view()  # autograd forbids changes in place to a view that a function returns
