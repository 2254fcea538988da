"""Paths: the order of every method, the closed equation of equiangular particles, switches, stops, refusals."""

from math import log2

import pytest
import torch
from torch import Tensor

from geonorm.dynamics import Attention, Flow, Fresh, equiangular, integrate, random_attention, uniform
from geonorm.dynamics.integrators import dormand_prince
from geonorm.errors import GeonormError

from ..rows import each


def end(flow: Flow, x: Tensor, time: float, **settings: object) -> Tensor:
    with torch.no_grad():
        return list(integrate(flow, x, [time], **settings))[-1][1]  # type: ignore[arg-type]


def setting(scheme: str) -> tuple[Flow, Tensor]:
    flow = Flow(scheme, Attention(beta=2.0), 8)
    return flow, flow.start(uniform(5, 4, seeds=(3,)))


@pytest.mark.parametrize("scheme", ["pre", "post", "ngpt(alpha=1)"])
def test_the_adaptive_pair_is_of_order_five_with_an_error_of_order_five(scheme: str) -> None:
    """Fixed steps of the pair, radii restored where the scheme keeps them; the error estimate is O(h^5) per step."""
    flow, x = setting(scheme)
    keeps = bool(flow.keeps_radius(0.0))

    def walk(steps: int) -> tuple[Tensor, float]:
        state, h, error = x, 2.0 / steps, torch.zeros(())
        for i in range(steps):
            slope = flow.velocity(state, i * h)
            state, error, _ = dormand_prince(flow.velocity, state, i * h, h, slope)
            state = state / state.norm(dim=-1, keepdim=True) if keeps else state
        return state, error.norm().item()

    coarse, middle, fine = (walk(n) for n in (4, 8, 16))
    found = log2((coarse[0] - middle[0]).norm() / (middle[0] - fine[0]).norm())
    assert 4.4 < found < 6.2
    assert 4.0 < log2(middle[1] / fine[1]) < 6.0


def test_mix_switches_on_time_and_runs_on_beyond_its_depth() -> None:
    times = [1.0, 3.0, 9.0]

    flow = Flow("mix(share=0.5)", Attention(beta=1.0), 4)
    assert flow.breaks(0.0, 9.0) == [2.0]
    x = flow.start(equiangular(5, 6))
    # the reference is integrated on both sides of the jump apart
    late = Flow("pre", Attention(beta=1.0), 4)
    with torch.no_grad():
        found = dict(integrate(flow, x, times, tolerance=1e-10))
        switch = end(Flow("post", Attention(beta=1.0), 4), x, 2.0, tolerance=1e-10)
        expected = end(late, switch, 7.0, tolerance=1e-10)  # pre knows no time, so it may start at 0
    torch.testing.assert_close(found[9.0], expected, rtol=0, atol=1e-8)
    in_log_time = end(flow, x, 9.0, tolerance=1e-10, log_time=True)
    torch.testing.assert_close(in_log_time, expected, rtol=0, atol=1e-8)


def test_what_all_particles_share_is_followed_to_the_tolerance() -> None:
    flow = Flow("post", random_attention(4, seed=1))
    x = flow.start(uniform(1, 4))
    with torch.no_grad():
        *_, (_, small_steps) = integrate(flow, x, [step / 50 for step in range(1, 101)])
    torch.testing.assert_close(end(flow, x, 2.0), small_steps, rtol=0, atol=1e-7)


def test_causal_particles_do_not_see_what_follows() -> None:
    flow = Flow("post", Attention(beta=1.0, causal=True))
    e = uniform(6, 4)
    changed = torch.cat((e[:, :4], uniform(2, 4, seeds=(8,))), dim=1)
    a, b = (end(flow, flow.start(s), 2.0) for s in (e, changed))
    torch.testing.assert_close(a[:, :4], b[:, :4], rtol=0, atol=1e-7)
    torch.testing.assert_close(a[:, 0], e[:, 0])
    assert (a[:, 4:] - b[:, 4:]).abs().min() > 1e-6


def test_fresh_weights_are_not_stepped_across() -> None:
    flow = Flow("post", Fresh(lambda layer: random_attention(4, layer=layer)), 8)
    x = flow.start(uniform(5, 4))
    expected = x
    for layer in range(2):
        expected = end(Flow("post", random_attention(4, layer=layer)), expected, 1.0)
    torch.testing.assert_close(end(flow, x, 2.0), expected, rtol=0, atol=1e-7)


@each(
    "settings, message",
    [
        ({"method": "adaptiv"}, "did you mean 'adaptive'"),
        ({"times": [2.0, 1.0]}, "ascend"),
        ({"times": [-1.0]}, "ascend"),
        ({"times": [float("nan")]}, "finite"),
        ({"times": [0.5], "method": "layers"}, "whole times"),
    ],
)
def test_what_cannot_be_integrated(settings: dict[str, object], message: str) -> None:
    flow, x = setting("post")
    with pytest.raises(GeonormError, match=message):
        list(integrate(flow, x, **{"times": [1.0], **settings}))  # type: ignore[arg-type]


def test_a_state_that_leaves_the_numbers_says_when() -> None:
    def explode(y: Tensor, tau: float = 0.0) -> Tensor:
        return y * (torch.inf if tau >= 1 else 1.0)

    explode.fresh = False  # type: ignore[attr-defined]
    flow = Flow("pre", explode)  # type: ignore[arg-type]
    x = flow.start(uniform(3, 4))
    for method in ("layers", "adaptive"):
        with pytest.raises(GeonormError, match=r"not finite|no longer finite"):
            end(flow, x, 3.0, method=method)
