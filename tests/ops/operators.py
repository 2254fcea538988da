"""The operators around the kernels: schemas, what they save, compilation, second derivatives. test_fused.py runs this
file in a process of its own, under Triton's interpreter."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import geodesic_update
from geonorm.norms import LayerNorm, RMSNorm
from geonorm.ops import AngleMap, WeightedSum, fused, geodesic_step

from ..rows import each

# torch's own compiler makes an instance of autograd functions
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")
FULL, HALF = torch.float32, torch.bfloat16
PAPER, LEVEL = AngleMap(post=torch.tensor(0.5)), AngleMap(post=0.5, power=1.0).level()
VECTORS = (torch.rand(16) + 0.1, torch.rand(16), torch.rand(16))
RULES = [PAPER, LEVEL, ("rms", VECTORS), ("layer", (None, VECTORS[1], None)), ("none", (None, None, None))]
"""Angle maps, and the norm of the update with the weights of a sum."""
NORMS = [RMSNorm(16), RMSNorm(16, gains=False), LayerNorm(16), LayerNorm(16, bias=False), LayerNorm(16, gains=False)]
READS = [None, nn.Identity(), *NORMS]
"""Nobody reads, somebody reads x' itself, or reads through a norm."""


def drawn(norm: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for p in norm.parameters():
        nn.init.normal_(p, mean=0.5, generator=generator)
    return norm


def pair(*shape: int, stream: torch.dtype = FULL, update: torch.dtype = FULL) -> tuple[Tensor, Tensor]:
    x, u = torch.randn(2, *(shape or (5, 16)), generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(stream).requires_grad_(), u.to(update).requires_grad_()


def incoming(x: Tensor, read: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gradients of x' and of y."""
    first, second = torch.randn(2, *x.shape, generator=torch.Generator().manual_seed(7))
    return first.to(x.dtype), second.to(read)


def direct(x: Tensor, u: Tensor, rule: Any, norm: nn.Module | None, read: torch.dtype = FULL) -> tuple[Tensor, ...]:
    """The function around the operators: x', and y if somebody reads."""
    known = None if norm is None else fused.row_norm(None if isinstance(norm, nn.Identity) else norm, x)
    made = fused.write(x, u, *plan(rule), None if norm is None else read, known)
    return (made,) if norm is None else made


def plan(rule: Any) -> fused.Plan:
    return fused.plan_step(rule) if isinstance(rule, AngleMap) else ([*rule[1]], rule[0], [0.9, 0.4, 1e-6])


@each("rule, norm", [*product(RULES, (None, NORMS[0])), *product(RULES[2:3], (READS[1], *NORMS[1:]))])
def test_operators_keep_their_contract(rule: Any, norm: nn.Module | None) -> None:
    x, u = (t.detach() for t in pair(2, 3, 16, update=HALF))
    weights, name, numbers = plan(rule)
    known = fused.RowNorm() if norm in READS[:2] else fused.row_norm(norm, x)
    assert known is not None
    ends = tuple(None if t is None else t.detach() for t in (known.weight, known.shift))
    middle = (*weights, name, numbers)
    arguments = (x, u, *middle, None if norm is None else HALF, known.kind, known.eps, *ends)
    torch.library.opcheck(torch.ops.geonorm.write_forward.default, arguments)
    stats = torch.ops.geonorm.write_forward(*arguments)[1]
    first, second = incoming(x, HALF)
    asked = [name != "geodesic" and t is not None for t in weights] + [t is not None for t in ends]
    for grad in (first, None) if norm is not None else (first,):
        read_grad = None if norm is None else second
        options = (*middle, known.kind, ends[0], asked)
        torch.library.opcheck(torch.ops.geonorm.write_backward.default, (grad, read_grad, x, u, stats, *options))


@each("stream", [FULL, HALF])
@each("path, scalars, gains", [("closed", 4, 0), (nn.Identity(), 3, 0), (RMSNorm(64), 5, 64)])
def test_saves_inputs_and_a_few_scalars_a_row(path: Any, scalars: int, gains: int, stream: torch.dtype) -> None:
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.data_ptr()] = t.numel() * t.element_size()
        return t

    x, u = pair(7, 64, stream=stream, update=HALF)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        if path == "closed":
            assert geodesic_update(x, u, decay=0.5, backend="closed").requires_grad
        else:
            direct(x, u, AngleMap(post=0.5), path, HALF)
    assert {x.data_ptr(), u.data_ptr()} < set(saved)
    assert sum(saved.values()) == 7 * 64 * (stream.itemsize + 2) + 7 * scalars * 4 + gains * 4


def compiles(f: Callable[..., tuple[Tensor, ...]], dynamic: bool, parameters: tuple[Tensor, ...] = ()) -> None:
    """One graph, right values and gradients; no recompilation for new numbers, nor new shapes if they are dynamic."""
    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")

    def both(rows: int, decay: float) -> None:
        x, u = pair(rows, 16)
        outs = [g(x, u, torch.tensor(decay)) for g in (f, compiled)]
        grads = [torch.autograd.grad([o.float().square().sum() for o in out], (x, u, *parameters)) for out in outs]
        for a, b in zip((*outs[1], *grads[1]), (*outs[0], *grads[0]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

    both(6, 1.0)
    with torch.compiler.set_stance("fail_on_recompile"):
        both(9 if dynamic else 6, 0.5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("norm", ["closed", *READS[:3], NORMS[2]], ids=str)
def test_every_path_compiles_into_one_graph(norm: Any, dynamic: bool) -> None:
    if norm == "closed":
        step = partial(geodesic_update, backend="closed")
        compiles(lambda x, u, post: (step(step(x.sin(), u, decay=post), u),), dynamic)
        return
    parameters = tuple(drawn(norm).parameters()) if norm is not None else ()
    compiles(lambda x, u, post: direct(x.sin(), u, AngleMap(post=post), norm, HALF), dynamic, parameters)


@pytest.mark.slow
def test_the_closed_form_compiles_for_any_shape() -> None:
    gain = torch.tensor([0.9], requires_grad=True)
    compiles(lambda x, u, post: (geodesic_step(x, u, AngleMap(post=post, gain=gain), backend="closed"),), True, (gain,))


@pytest.mark.parametrize("path", ["closed", "fused", "read", "norm", "sum"])
def test_second_derivatives_are_those_of_the_textbook(path: str) -> None:
    """u depends on x, both on one weight; either output may be the only one that is used."""
    learned = {"gain": torch.tensor([0.9], requires_grad=True)} if path == "closed" else {}
    keep = torch.rand(8, requires_grad=True)
    rule: Any = ("rms", (keep, None, None)) if path == "sum" else AngleMap(post=0.5, **learned)
    norm = {"read": nn.Identity(), "norm": drawn(LayerNorm(8)), "sum": drawn(RMSNorm(8))}.get(path)
    start, weight = (t.detach().requires_grad_() for t in (pair(4, 8)[0], pair(8, 8)[0]))
    learned |= {"keep": keep} if path == "sum" else {}
    wanted = (start, weight, *learned.values(), *(norm.parameters() if norm is not None else ()))

    def step(x: Tensor, u: Tensor, fast: bool) -> tuple[Tensor, ...]:
        if fast and path != "closed":
            return direct(x, u, rule, norm)
        if path == "sum":
            out = WeightedSum(keep, 0.4, norm=RMSNorm(8, gains=False))(x, u)
        else:
            out = geodesic_step(x, u, rule, backend="closed" if fast else "reference")
        return (out,) if norm is None else (out, norm(out))

    def twice(fast: bool, last: bool) -> tuple[Tensor, ...]:
        x = start @ weight
        outs = step(x, torch.tanh(x @ weight), fast)
        loss = sum(out.pow(3).sum() for out in (outs[-1:] if last else outs))
        first = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first if g is not None), wanted, allow_unused=True)

    for last in (False, True):
        for found, true in zip(twice(True, last), twice(False, last), strict=True):
            assert (found is None) == (true is None)
            if found is not None:
                assert true.norm() > 1e-3
                assert (found - true).norm() <= 1e-4 * true.norm()
