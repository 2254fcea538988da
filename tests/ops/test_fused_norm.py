"""The operators that end in a norm, on their CPU form: schemas, compilation, both outputs, sharding, what is fused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm.norms import DyT, LayerNorm, RMSNorm, UnitNorm
from geonorm.ops import AngleMap, fused_norm, geodesic_step_read, launch_norm
from geonorm.ops.fused import fields, split

# torch's own compiler makes an instance of autograd functions
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")
NORMS = [RMSNorm(16), RMSNorm(16, gains=False), LayerNorm(16), LayerNorm(16, bias=False), LayerNorm(16, gains=False)]


def drawn(norm: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for p in norm.parameters():
        nn.init.normal_(p, mean=0.5, generator=generator)
    return norm


def pair(*shape: int, stream: torch.dtype = torch.float32, update: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    x, u, first, second = torch.randn(4, *shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(stream).requires_grad_(), u.to(update).requires_grad_(), first.to(stream), second


def learned() -> AngleMap:
    gain, bias = (torch.tensor(v, requires_grad=True) for v in (0.9, 0.02))
    return AngleMap(post=torch.tensor(0.5), gain=gain, bias=bias, power=2.0)


def direct(x: Tensor, u: Tensor, angles: AngleMap, norm: nn.Module, read: torch.dtype) -> tuple[Tensor, Tensor]:
    known = fused_norm.row_norm(norm, x)
    assert known is not None
    return fused_norm.update_and_norm(x, u, angles, known, read)


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("angles", [AngleMap(post=0.5), learned()], ids=["plain", "learned"])
def test_operators_keep_their_contract(angles: AngleMap, norm: nn.Module) -> None:
    x, u, first, second = (t.detach() for t in pair(2, 3, 16, update=torch.bfloat16))
    tensors, numbers = split(fields(angles)[:4], angles.max_angle, angles.power)
    scalars = (*(None if t is None else t.detach() for t in tensors), numbers)
    known = fused_norm.row_norm(norm, x)
    assert known is not None
    weight, shift = (None if t is None else t.detach() for t in (known.weight, known.shift))
    arguments = (x, u, *scalars, weight, shift, known.eps, known.centred, torch.bfloat16)
    ops = torch.ops.geonorm
    torch.library.opcheck(ops.geodesic_forward_norm.default, arguments)
    stats = ops.geodesic_forward_norm(*arguments)[2]
    for grad in (first, None):
        asked = (isinstance(angles.gain, Tensor), weight, known.centred, weight is not None, shift is not None)
        torch.library.opcheck(
            ops.geodesic_backward_norm.default, (grad, second.bfloat16(), x, u, stats, *scalars, *asked)
        )


@pytest.mark.parametrize("types", [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_function_around_them_equals_step_then_norm(norm: nn.Module, types: tuple[torch.dtype, ...]) -> None:
    """Values, and the gradients of both outputs, of either, and of a norm half of which is frozen. Half precision is
    compared with fp32 on the same numbers: one after the other it rounds the gradient in between."""
    angles = learned()
    x, u, first, second = pair(3, 5, 16, stream=types[0], update=types[1])
    second = second.to(types[1])
    drawn(norm)
    wanted = (x, u, angles.gain, angles.bias, *norm.parameters())
    found = direct(x, u, angles, norm, types[1])
    true = geodesic_step_read(x.float(), u.float(), angles, None, "closed", norm)
    tight = types[0] == torch.float32
    for a, b in zip(found, true, strict=True):
        assert a.dtype == types[0]
        torch.testing.assert_close(a.float(), b, rtol=2e-6 if tight else 8e-3, atol=2e-6 if tight else 1e-2)
    for at, grads in (((0, 1), (first, second)), ((1,), (second,)), ((0,), (first,))):
        results = [
            torch.autograd.grad(
                [o[i] for i in at], wanted, [g.to(o[0].dtype) for g in grads], retain_graph=True, allow_unused=True
            )
            for o in (found, true)
        ]
        for a, b in zip(*results, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert a.dtype == b.dtype
                size = b.float().norm() + (b.dim() == 0)  # a scalar's is a sum of 15 numbers around 1, which cancel
                assert (a - b).float().norm() <= (1e-5 if tight else 1e-2) * size
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        norm.bias.requires_grad_(False)
        torch.autograd.backward(direct(x, u, angles, norm, types[1]), (first, second))
        assert norm.bias.grad is None and norm.weight.grad is not None
        norm.zero_grad(), norm.bias.requires_grad_()


def test_saves_what_the_plain_step_saves_and_two_more_scalars_a_row() -> None:
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.data_ptr()] = t.numel() * t.element_size()
        return t

    x, u, *_ = pair(7, 64, update=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        direct(x, u, AngleMap(post=0.5), RMSNorm(64), torch.bfloat16)
    assert sum(saved.values()) == 7 * 64 * (4 + 2) + 7 * 5 * 4 + 64 * 4


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("norm", [NORMS[0], NORMS[2]], ids=str)
def test_compiles_into_one_graph(norm: nn.Module, dynamic: bool) -> None:
    """Right values and gradients without breaks; nothing is compiled again for new numbers, nor for new shapes if they
    are dynamic."""
    drawn(norm)

    def f(x: Tensor, u: Tensor, post: Tensor) -> tuple[Tensor, Tensor]:
        return direct(x.sin(), u, AngleMap(post=post), norm, torch.bfloat16)

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")

    def both(rows: int, decay: float) -> None:
        x, u, *_ = pair(rows, 16)
        post = torch.tensor(decay, requires_grad=True)
        outs = [g(x, u, post) for g in (f, compiled)]
        grads = [
            torch.autograd.grad([o.float().square().sum() for o in out], (x, u, post, *norm.parameters()))
            for out in outs
        ]
        for a, b in zip((*outs[1], *grads[1]), (*outs[0], *grads[0]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

    both(6, 1.0)
    with torch.compiler.set_stance("fail_on_recompile"):
        both(9 if dynamic else 6, 0.5)


class Doubled(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def watched() -> nn.Module:
    norm = RMSNorm(16)
    norm.register_forward_hook(lambda module, args, out: None)
    return norm


def halved() -> nn.Module:
    norm = RMSNorm(16)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus())
    return norm


@pytest.mark.parametrize(
    "norm",
    [Doubled(16), watched(), halved(), UnitNorm(16), DyT(16), nn.Identity(), RMSNorm(16).double(), RMSNorm(8)],
    ids=lambda n: type(n).__name__,
)
def test_other_modules_are_called(norm: nn.Module) -> None:
    assert fused_norm.row_norm(norm, torch.ones(2, 16)) is None


def test_wide_rows_take_the_step_and_then_the_norm() -> None:
    for dim, fits in ((launch_norm.MAX_DIM, True), (launch_norm.MAX_DIM + 1, False)):
        assert (fused_norm.row_norm(RMSNorm(dim), torch.ones(1, dim)) is not None) == fits


SHARDING = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from geonorm.ops import AngleMap, fused_norm
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
full = torch.randn(2, 4, 6, 16)
gain, gains, biases = torch.tensor(0.9), torch.rand(16), torch.rand(16)

def run(x, u, gain, gains, biases):
    known = fused_norm.RowNorm(gains, biases, 1e-6, True)
    outs = fused_norm.update_and_norm(x, u, AngleMap(gain=gain), known, torch.bfloat16)
    leaves = (x, u, gain, gains, biases)
    first = torch.autograd.grad(outs[0], leaves[:3], torch.ones_like(outs[0]), retain_graph=True)
    return [*outs, *first, *torch.autograd.grad(outs, leaves, [torch.ones_like(out) for out in outs])]

for at in (0, 1):
    local = [t.contiguous() for t in full.chunk(2, at + 1)[0]]
    rows = [DTensor.from_local(t, mesh, [Shard(at)]).requires_grad_() for t in local]
    whole = [DTensor.from_local(t, mesh, [Replicate()]).requires_grad_() for t in (gain, gains, biases)]
    found = run(*rows, *whole)
    true = run(*(t.detach().clone().requires_grad_() for t in (*local, gain, gains, biases)))
    row, sums = (Shard(at),), (Partial(),)
    for a, b, place in zip(found, true, [row] * 4 + [sums] + [row] * 2 + [sums] * 3, strict=True):
        assert a.placements == place, (a.placements, place)
        torch.testing.assert_close(a.to_local(), b)
x, u = (DTensor.from_local(t, mesh, [Shard(2)]).requires_grad_() for t in full)
try:
    run(x, u, *whole)
except Exception as error:
    assert "shard tokens instead" in str(error), error
else:
    raise AssertionError("a sharded row passed")
print("sharded")
"""


def test_rows_shard_and_features_do_not() -> None:
    source = str(Path(geonorm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SHARDING],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "sharded" in done.stdout, done.stdout + done.stderr
