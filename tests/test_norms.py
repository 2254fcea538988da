"""Every normaliser against its formula, and the rule of dtypes: fp32 maths, one cast at the end."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from geonorm.errors import ConfigError
from geonorm.norms import NORMS, NormSpec
from geonorm.schemes import advance

from .rows import each

DIM, EPS = 12, 1e-3


def formula(kind: str, x: Tensor, p: dict[str, Tensor]) -> Tensor:
    gain, bias = p.get("weight", torch.tensor(1.0)), p.get("bias", torch.tensor(0.0))
    if kind in ("rms", "taper"):  # at the start of the taper
        return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * gain
    if kind == "layer":
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * gain + bias
    if kind == "dyt":
        return torch.tanh(p["slope"] * x) * gain + bias
    if kind == "derf":
        return torch.erf(p["slope"] * x + p["shift"]) * gain + bias
    if kind == "gated":
        y = x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * gain
        z = y @ p["down"].T if "down" in p else y
        return y / (1 + torch.exp(-(z / (1 + torch.exp(-z))) @ p["up"].T)) if "up" in p else y
    if kind == "unit":
        return x / (x.pow(2).sum(-1, keepdim=True) + EPS).sqrt() * gain
    return x


def built(kind: str, gains: bool = True) -> nn.Module:
    """With every parameter moved off its initial value."""
    norm = NormSpec(kind, DIM, gains, EPS)()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return norm


def inputs(dtype: torch.dtype) -> Tensor:
    return (3 * torch.randn(5, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1).to(dtype)


@each("gains", [True, False])
@each("kind", NORMS)
def test_formula_in_fp64(kind: str, gains: bool) -> None:
    norm = built(kind, gains).double()
    x = inputs(torch.float64)
    torch.testing.assert_close(norm(x), formula(kind, x, dict(norm.named_parameters())), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norm(x[0]), norm(x)[0])


@each("parameters", [torch.float32, torch.bfloat16])
@each("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each("kind", NORMS)
def test_maths_in_fp32_and_one_cast_to_the_input(kind: str, dtype: torch.dtype, parameters: torch.dtype) -> None:
    norm = built(kind).to(parameters)
    x = inputs(dtype)
    out = norm(x)
    exact = formula(kind, x.double(), {name: p.double() for name, p in norm.named_parameters()})
    assert out.dtype == dtype
    # half an ulp of the output (and fp32 rounding before it): a second rounding anywhere would break this
    limit = 0.5 * torch.finfo(dtype).eps * 1.01 if dtype != torch.float32 else 2e-6
    torch.testing.assert_close(out.double(), exact, rtol=limit, atol=1e-6)


@each("kind", NORMS)
def test_gains_false_leaves_no_gains(kind: str) -> None:
    names = [name for name, _ in NormSpec(kind, DIM)(gains=False).named_parameters()]
    assert names == {"dyt": ["slope"], "derf": ["slope", "shift"]}.get(kind, [])  # what they are made of


@each("kind", [kind for kind in NORMS if kind != "none"])
def test_reset_parameters_restores_the_start(kind: str) -> None:
    norm, fresh = built(kind), NormSpec(kind, DIM, eps=EPS)()
    norm.reset_parameters()  # type: ignore[operator]
    for (name, found), (_, expected) in zip(norm.named_parameters(), fresh.named_parameters(), strict=True):
        assert torch.equal(found, expected), name
        start = {"weight": 1.0, "bias": 0.0, "slope": 0.5, "shift": 0.0, "up": 0.0, "linear": 1.0}
        assert name == "down" or torch.equal(expected, torch.full_like(expected, start[name]))


def test_the_gate_of_a_gated_norm_starts_at_a_half_and_is_of_rank_16() -> None:
    norm = NormSpec("gated", 64)()
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm(x), NormSpec("rms", 64)()(x) / 2)
    shapes = {name: tuple(p.shape) for name, p in norm.named_parameters()}
    assert shapes == {"weight": (64,), "down": (16, 64), "up": (64, 16)}
    assert norm.down.std().item() == pytest.approx(1 / 8, rel=0.1)
    state = torch.random.get_rng_state()
    other = NormSpec("gated", 64)()
    assert torch.equal(other.down, norm.down) and torch.equal(torch.random.get_rng_state(), state)


def test_every_parameter_has_a_gradient_and_zero_rows_are_finite() -> None:
    for kind in NORMS:
        norm = built(kind)
        x = torch.cat((torch.zeros(1, DIM), inputs(torch.float32))).requires_grad_()
        norm(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in norm.parameters()), kind
        assert x.grad is not None and x.grad.isfinite().all(), kind


def test_unit_norm_without_eps_at_every_length() -> None:
    """Its gradient falls as 1/|x|; a row without a square has neither direction nor gradient."""
    norm = NormSpec("unit", DIM, gains=False, eps=0.0)()
    lengths = torch.tensor([0.0, 1e-30, 1e-20, 1e-18, 1e-15, 1e-9, 1.0, 1e9, 1e18])[:, None]
    x, grad = torch.randn(2, len(lengths), DIM, generator=torch.Generator().manual_seed(0))
    x = (lengths * x / x.norm(dim=-1, keepdim=True)).requires_grad_()
    true = x.detach().double().requires_grad_()
    slopes, wanted = (torch.autograd.grad(norm(each), each, grad.to(each.dtype))[0] * lengths for each in (x, true))
    assert not norm(x)[:3].any() and not slopes[:3].any()
    torch.testing.assert_close(norm(x)[3:], norm(true)[3:].float())
    torch.testing.assert_close(slopes[3:].double(), wanted[3:], rtol=1e-4, atol=1e-6)


def tapered(steps: int) -> tuple[nn.Module, float, Tensor]:
    """A norm that tapers from step 3 to 7 after so many steps of two micro-batches each, its c and its w at step 3."""
    norm, means = built("taper").double(), torch.zeros(2, dtype=torch.float64)
    norm.start, norm.end = 3, 7
    at_start = norm.weight.detach().clone()
    for step in range(1, steps + 1):
        batches = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(step), dtype=torch.float64) * step
        if step <= 3:
            rms = (batches.pow(2).mean(-1) + EPS).sqrt()
            energy = (batches * norm.weight.detach()).pow(2).sum(-1)
            means = 0.99 * means + 0.01 * torch.stack(((energy / rms).mean(), energy.mean()))
        for x in (*batches, *batches):  # each twice, as under recomputation
            norm(x)
        with torch.no_grad():
            norm(100 * batches)
            norm.eval()(batches), norm.train()
            norm.weight += 0.1 * torch.randn(DIM, generator=torch.Generator().manual_seed(step))
            if step <= 3:
                at_start = norm.weight.detach().clone()
        advance(norm)
    return norm, (means[0] / means[1]).item() if steps else 1.0, at_start


def test_taper_against_its_equation_and_folded_at_its_end() -> None:
    gates = {2: 1.0, 3: 1.0, 4: 0.5 + 0.125**0.5, 5: 0.5, 6: 0.5 - 0.125**0.5, 7: 0.0, 9: 0.0}
    for steps, gate in gates.items():
        norm, c, at_start = tapered(steps)
        assert norm.gate.item() == pytest.approx(gate, abs=1e-7)
        assert torch.equal(norm.linear, at_start)
        x = inputs(torch.float64).requires_grad_()
        p = [norm.weight, norm.linear, x]
        expected = gate * formula("rms", x, {"weight": p[0]}) + (1 - gate) * c * p[1] * x
        torch.testing.assert_close(norm(x), expected, rtol=1e-6, atol=1e-6)
        cotangent = torch.randn(5, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        found, wanted = (torch.autograd.grad(y, p, cotangent) for y in (norm(x), expected))
        for gradient, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-6)
        norm.eval()
        matrix = torch.randn(4, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        folded = F.linear(x, matrix * norm(torch.eye(DIM, dtype=torch.float64)).diagonal())
        assert torch.allclose(F.linear(norm(x), matrix), folded, rtol=1e-12) == (gate == 0), steps


def test_taper_goes_on_from_its_state_bit_for_bit() -> None:
    for steps in (2, 5):
        norm, other = tapered(steps)[0], built("taper").double()
        other.start, other.end = 3, 7
        other.load_state_dict(norm.state_dict())
        for _ in range(3):
            a, b = (each(inputs(torch.float64)) for each in (norm, other))
            assert torch.equal(a, b)
            advance(norm), advance(other)
        assert all(map(torch.equal, norm.state_dict().values(), other.state_dict().values()))


@each("kind", NORMS)
def test_bias_is_a_choice_of_kinds_that_have_one(kind: str) -> None:
    spec = NormSpec(kind, DIM, eps=EPS)
    with_bias, without = spec(), spec(bias=False)
    names = {name for name, _ in with_bias.named_parameters()}
    assert {name for name, _ in without.named_parameters()} == names - {"bias"}
    assert ("bias" in names) == (kind in ("layer", "dyt", "derf"))
    if "bias" in names:
        nn.init.normal_(with_bias.weight)
        without.weight.data.copy_(with_bias.weight)
        x = inputs(torch.float32)
        torch.testing.assert_close(without(x), with_bias(x))  # a bias of zero is no bias
        without.reset_parameters()
        assert torch.equal(without.weight, torch.ones(DIM))


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown norm 'rsm'.*did you mean 'rms'") as error:
        NormSpec("rsm", DIM)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="unknown norm"):
        NormSpec("rms", DIM)(kind="batch")
