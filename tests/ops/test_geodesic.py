"""The geodesic update: every path against the literal textbook formula in fp64; invariants, degenerate and extreme
rows, dtypes."""

from collections.abc import Callable
from math import inf, pi

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from geonorm import geodesic_update, sphere
from geonorm.ops import AngleMap, geodesic_step

from ..rows import each
from . import norm_checks, step_checks
from .geodesic_cases import BACKENDS, MAPS, angle_between, pair, textbook
from .kernel_tools import compare, largest_error, run, sample, truth

FUSED = [check for name, check in vars(norm_checks).items() if "check_norm" in name or name == "check_joined_residuals"]
FUSED.append(step_checks.check_autocast)
"""Of the operators alone."""
FAST = [step_checks.check_shapes, step_checks.check_extreme_rows]
"""Of numbers at which the textbook overflows, and of the rounding of rows of one number."""
CASES = settings(max_examples=25, deadline=None)


Check = Callable[[str], None]
SEEDS, DIMS = st.integers(0, 2**20), st.integers(2, 50)


CHECKS = [check for module in (step_checks, norm_checks) for name, check in vars(module).items() if "check_" in name]


@each("check", CHECKS)
@pytest.mark.parametrize("path", BACKENDS)
def test_a_path_does_what_the_kernels_must(path: str, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    if check in FUSED or (path == "reference" and check in FAST):
        pytest.skip("not of this path")
    monkeypatch.setenv("GEONORM_BACKEND", path)
    check("cpu")


@each("types", [(torch.float64, torch.float32), (torch.float32, torch.float64)])
@each("backend", BACKENDS)
def test_fp64_beside_fp32(types: tuple[torch.dtype, torch.dtype], backend: str) -> None:
    inputs = sample(9, 100, "cpu", types)
    results = run(*inputs, AngleMap(post=0.5), backend)
    assert [t.dtype for t in results] == [types[0], *types]
    compare(results, truth(*inputs, AngleMap(post=0.5)))


@each("ratio", [1e-3, 0.02, 0.3, 0.5, 2.0, 3.0, 40.0, 50.0])
@each("name", MAPS)
@each("backend", BACKENDS)
def test_every_angle_map_equals_the_textbook(backend: str, name: str, ratio: float) -> None:
    angles = MAPS[name]()
    learned = [p for p in (angles.pre, angles.post, angles.gain, angles.bias) if isinstance(p, Tensor)]
    x, u = pair(ratio=ratio)
    weights = torch.randn_like(x)
    out, true = geodesic_step(x, u, angles, backend=backend), textbook(x, u, angles)
    assert largest_error(out, true) < 1e-12
    wanted = (x, u, *(p for p in learned if p.requires_grad))
    found = torch.autograd.grad((out * weights).sum(), wanted)
    expected = torch.autograd.grad((true * weights).sum(), wanted)
    for a, b in zip(found, expected, strict=True):
        # the small constant is for gradients whose true value is 0
        assert ((a - b).abs().max() / (b.abs().max() + 1e-3)).item() < 1e-11


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_retractions_are_the_maps_they_are_named_after(backend: str) -> None:
    """p = 1 is metric projection of x + v, p = 2 the Cayley transform, large p approach the exponential map."""
    x, u = (t.detach() for t in pair(count=5, dim=6, ratio=0.9, radius=3.0))
    v = sphere.tangent(x, u)

    def move(power: float) -> Tensor:
        return geodesic_step(x, u, AngleMap(power=power, max_angle=pi), backend=backend)

    length, total = x.norm(dim=-1, keepdim=True), x + v
    torch.testing.assert_close(move(1.0), total * length / total.norm(dim=-1, keepdim=True), rtol=0, atol=1e-13)
    turn = (v.unsqueeze(-1) * x.unsqueeze(-2) - x.unsqueeze(-1) * v.unsqueeze(-2)) / 9.0
    eye = torch.eye(6, dtype=torch.float64)
    cayley = torch.linalg.solve(eye - turn / 2, (eye + turn / 2) @ x.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(move(2.0), cayley, rtol=0, atol=1e-13)
    exact = sphere.exp(x, v)
    torch.testing.assert_close(move(inf), exact, rtol=0, atol=1e-13)
    distances = [(move(power) - exact).abs().max().item() for power in (1.0, 10.0, 100.0, 1e4)]
    assert distances == sorted(distances, reverse=True) and distances[-1] < 1e-8
