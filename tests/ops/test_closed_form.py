"""The closed form: one token without a gradient, a compiled CPU, gains at the ceiling."""

from __future__ import annotations

import os
from shutil import which

import pytest
import torch

from geonorm import norms
from geonorm.ops import AngleMap, closed_form, geodesic_step
from geonorm.ops.slopes import Slopes

from ..rows import each


def test_the_slope_of_the_angle_is_0_from_its_ceiling_on() -> None:
    ratio = torch.tensor([[0.995], [1.005]], dtype=torch.float64)
    met = Slopes(torch.ones_like(ratio), torch.ones_like(ratio), torch.zeros_like(ratio)).clamp(ratio, 1.0)
    assert met.slope.tolist() == [[1.0], [0.0]]
    torch.testing.assert_close(met.quotient * ratio, ratio.clamp(max=1.0))


@pytest.mark.slow
@pytest.mark.skipif(which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # torch silences its compiler's warnings itself
def test_compiled_for_a_cpu_no_row_is_turned_more_than_once() -> None:
    """Sines, cosines and roots stand in loops over rows, where they are vectors, and not in those over columns."""
    from torch._inductor.utils import run_fw_bw_and_get_code

    post = torch.tensor(0.5)
    compiled = torch.compile(lambda x, u: geodesic_step(x, u, AngleMap(post=post), backend="closed"), dynamic=False)
    x, u = (t.requires_grad_() for t in torch.randn(2, 64, 48))
    torch.compiler.reset()
    _, programs = run_fw_bw_and_get_code(lambda: compiled(x, u))
    assert len(programs) == 2
    for program in programs:
        assert ".cos()" in program
        assert not any(f"std::{name}(" in program for name in ("cos", "sin", "sqrt"))


@each("dtype", [torch.float32, torch.float64, torch.bfloat16])
@each("size", [0.0, 1e-20, 1e-6, 1e-2, 0.5, 3.0, 1e6])
def test_one_token_without_gradient_takes_the_same_step(dtype: torch.dtype, size: float) -> None:
    torch.manual_seed(0)
    x, u = torch.randn(1, 1, 64).to(dtype), (size * torch.randn(1, 1, 64)).to(dtype)
    for angles in (AngleMap(), AngleMap(post=torch.tensor(0.25)), AngleMap(post=3.0, max_angle=0.5)):
        with torch.no_grad():
            assert norms.one_row(x) and norms.one_row(u)
            ours = closed_form.step_of_one(x, u, angles)
            assert torch.equal(closed_form.closed_form(x, u, angles), ours)
        expected = closed_form.step(x, u, angles)[0].to(dtype)
        assert ours.dtype == dtype and ours.shape == x.shape
        limit = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(ours, expected, rtol=limit, atol=limit)


def test_one_token_at_the_edges() -> None:
    x, zero = torch.randn(64), torch.zeros(64)
    assert torch.equal(closed_form.step_of_one(zero, x, AngleMap()), zero)
    assert torch.equal(closed_form.step_of_one(x, zero, AngleMap()), x)
    torch.testing.assert_close(closed_form.step_of_one(x, 3 * x, AngleMap()), x)
    for bad in (float("nan"), float("inf")):
        assert closed_form.step_of_one(x, torch.full((64,), bad), AngleMap()).isnan().all()
        assert closed_form.step_of_one(torch.full((64,), bad), x, AngleMap()).isnan().all()
        assert closed_form.step_of_one(zero, torch.full((64,), bad), AngleMap()).isnan().all()
    far = closed_form.step_of_one(torch.full((4,), 1e-3), torch.full((4,), 1e38), AngleMap())
    assert far.isnan().all()  # a factor above the largest fp32 number, which PyTorch takes from no Python number


@each("backend", ["closed", "reference"])
@each("dtype", [torch.float32, torch.float64])
@each("bias", [None, 0.0])
def test_a_gain_of_one_at_the_ceiling_has_no_gradient(backend: str, dtype: torch.dtype, bias: float | None) -> None:
    """As it begins in the first block, where both minima meet: rounding does not say which tokens count, so that a
    batch and its parts agree."""
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
