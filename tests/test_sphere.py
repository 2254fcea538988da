"""Geometry of the sphere against its definitions, in fp64, and the accuracy of the frame in fp32."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from geonorm import sphere

from .rows import each

CASES = settings(max_examples=25, deadline=None)
SEEDS, DIMS = st.integers(0, 2**20), st.integers(2, 40)


def rows(seed: int, dim: int, count: int = 5, radius: float = 1.0) -> Tensor:
    """Random points of one radius, fp64."""
    x = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return radius * x / x.norm(dim=-1, keepdim=True)


def norm(x: Tensor) -> Tensor:
    return x.norm(dim=-1, keepdim=True)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@CASES
@given(SEEDS, DIMS, st.floats(0.01, 100), st.floats(1e-6, 3.1))
def test_log_inverts_exp(seed: int, dim: int, radius: float, angle: float) -> None:
    x = rows(seed, dim, radius=radius)
    v = sphere.tangent(x, rows(seed + 1, dim))
    v = angle * radius * v / norm(v)
    y = sphere.exp(x, v)
    close(norm(y), norm(x))
    close(sphere.angle(x, y), torch.full_like(norm(x), angle), 1e-10)
    close(sphere.log(x, y), v, 1e-9 * max(1.0, radius))


@CASES
@given(SEEDS, DIMS)
def test_frame_splits_into_radial_and_tangential(seed: int, dim: int) -> None:
    x, u = rows(seed, dim, radius=3.0), rows(seed + 1, dim, radius=0.7)
    c, v = sphere.frame(x, u)
    close(c * x + v, u)
    close(c, sphere.dot(x, u) / sphere.dot(x, x))
    assert (sphere.dot(x, v).abs() < 1e-15).all()
    close(sphere.tangent(x, v + 5 * x), v)


@pytest.mark.parametrize("sine", [1e-2, 1e-3])
def test_frame_keeps_the_angle_where_the_gram_form_loses_it(sine: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1024, generator=generator)
    u = 0.5 * x + sine * 0.5 * torch.randn(64, 1024, generator=generator)
    true = norm(sphere.tangent(x.double(), u.double()))
    gram = (sphere.dot(u, u) - sphere.dot(x, u) ** 2 / sphere.dot(x, x)).clamp(min=0).sqrt()
    assert (norm(sphere.frame(x, u)[1]) / true - 1).abs().max() < 1e-5
    assert (gram / true - 1).abs().max() > 2e-4, "the test has lost its point"


def test_frame_is_orthogonalised_twice() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1024, generator=generator)
    u = 1e4 * x + torch.randn(64, 1024, generator=generator)

    def leak(v: Tensor) -> float:
        return (sphere.dot(x.double(), v.double()) / norm(x.double()) / norm(v.double())).abs().max().item()

    once = u - sphere.dot(x, u) / sphere.dot(x, x) * x
    assert leak(sphere.tangent(x, u)) < 1e-6 < leak(once)


@each("degrees", [1e-6, 1e-3, 1.0, 179.0, 179.999])
def test_angle_is_accurate_near_0_and_pi_in_fp32(degrees: float) -> None:
    turn = math.radians(degrees)
    x = torch.tensor([2.0, 0.0, 0.0])
    y = torch.tensor([math.cos(turn), math.sin(turn), 0.0], dtype=torch.float64).float()
    assert sphere.angle(x, y).item() == pytest.approx(turn, rel=1e-6)


def test_degenerate_rows_stay_finite_in_value_and_gradient() -> None:
    x = torch.tensor([[0.0, 0, 0], [1, 2, 2], [1, 2, 2]], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([[1.0, 2, 3], [0, 0, 0], [2, 4, 4]], dtype=torch.float64, requires_grad=True)
    for function in (sphere.exp, sphere.log, sphere.angle, sphere.tangent):
        out = function(x, w)
        gradients = torch.autograd.grad(out.sum(), (x, w))
        assert all(t.isfinite().all() for t in (out, *gradients)), function.__name__
    assert torch.equal(sphere.exp(x, w)[:2], x[:2])
    assert torch.equal(sphere.log(x, w)[0], torch.zeros(3, dtype=torch.float64))
    assert sphere.radius(x)[0] == 0 and torch.autograd.grad(sphere.radius(x).sum(), x)[0][0].eq(0).all()


def test_log_at_the_point_and_at_its_antipode() -> None:
    x = rows(0, 4)
    close(sphere.log(x, -x), torch.zeros_like(x))
    assert torch.autograd.gradcheck(sphere.log, (x.clone().requires_grad_(), x.clone().requires_grad_()))
    y = sphere.exp(x, (math.pi - 1e-5) * sphere.tangent(x, rows(1, 4)) / sphere.radius(sphere.tangent(x, rows(1, 4))))
    close(sphere.exp(x.float(), sphere.log(x.float(), y.float())), y.float(), 1e-5)


@each("angle", [0.0, 1e-8, 9.99e-3, 1.001e-2, 0.5, 3.0, -2.0])
def test_sinc_value_and_slope(angle: float) -> None:
    point = torch.tensor(angle, dtype=torch.float64, requires_grad=True)
    value = sphere.sinc(point)
    (slope,) = torch.autograd.grad(value, point)
    if abs(angle) > 1e-3:
        expected = math.sin(angle) / angle, (math.cos(angle) - math.sin(angle) / angle) / angle
    else:
        expected = 1 - angle**2 / 6, -angle / 3
    assert value.item() == pytest.approx(expected[0], rel=1e-15)
    assert slope.item() == pytest.approx(expected[1], rel=1e-11, abs=1e-16)


@pytest.mark.parametrize("ratio", [1e3, 1e5, 1e9])
def test_series_that_are_not_used_leave_gradients_of_large_numbers_alone(ratio: float) -> None:
    """In fp32 the seventh power of a square overflows from a ratio of some 2000 on."""
    squared = torch.tensor(ratio**2, requires_grad=True)
    quotient = sphere.retraction_quotient(squared, 1.0)
    (slope,) = torch.autograd.grad(quotient, squared)
    wanted = (1 / (1 + ratio**2) - math.atan(ratio) / ratio) / (2 * ratio**2)
    assert quotient.item() == pytest.approx(math.atan(ratio) / ratio, rel=1e-6, abs=0)
    assert slope.item() == pytest.approx(wanted, rel=1e-5, abs=0)
    assert torch.autograd.grad(sum(sphere.cos_and_sinc(squared)), squared)[0].isfinite()


def test_safe_functions_let_nan_through_and_have_no_gradient_at_zero() -> None:
    b = torch.tensor([0.0, 2.0, math.nan], requires_grad=True)
    quotient, root = sphere.safe_divide(torch.ones(3), b), sphere.safe_sqrt(b)
    assert quotient[:2].tolist() == [0.0, 0.5] and quotient[2].isnan()
    assert root[:2].tolist() == pytest.approx([0.0, math.sqrt(2)]) and root[2].isnan()
    for out in (quotient, root):
        assert torch.autograd.grad(out[:2].sum(), b)[0][0] == 0


@pytest.mark.parametrize("function", [sphere.exp, sphere.log, sphere.angle, sphere.tangent])
def test_derivatives_and_dtype(function: object) -> None:
    assert callable(function)
    x, y = rows(0, 4, 2).requires_grad_(), rows(1, 4, 2).requires_grad_()
    assert torch.autograd.gradcheck(function, (x, y))
    assert torch.autograd.gradcheck(function, (x, y), check_forward_ad=True, check_backward_ad=False)
    assert function(x.float(), y.float()).dtype == torch.float32
