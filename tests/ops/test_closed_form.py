"""The closed form at the clamp of the angle."""

import torch

from geonorm.ops import AngleMap, geodesic_step

from ..rows import each


def test_the_slope_of_the_angle_is_0_from_its_clamp_on() -> None:
    ratio = torch.tensor([[0.995], [1.005]])
    for gain in (1.0, torch.tensor(1.0)):
        slope, *_ = AngleMap(gain=gain, max_angle=1.0).chain_rule(ratio, torch.ones(2, 1))
        assert slope.tolist() == [[1.0], [0.0]]


@each("backend", ["closed", "reference"])
@each("dtype", [torch.float32, torch.float64])
@each("bias", [None, 0.0])
def test_a_gain_of_one_at_the_clamp_has_no_gradient(backend: str, dtype: torch.dtype, bias: float | None) -> None:
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
        assert not out._is_view()  # autograd forbids changes in place to a view that a function returns
