"""The operators around the kernels, on their CPU form: schemas, compilation, two outputs, norms, sharding."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from math import pi
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm import geodesic_update
from geonorm.norms import DyT, LayerNorm, RMSNorm, UnitNorm
from geonorm.ops import AngleMap, fused, geodesic_step, launch

from ..rows import each

# torch's own compiler makes an instance of autograd functions
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")
FULL, HALF = torch.float32, torch.bfloat16
PAPER, SMOOTH = AngleMap(post=torch.tensor(0.5)), AngleMap(post=0.5, power=0.5, max_angle=pi)
LEVEL = AngleMap(post=0.5, power=1.0).level()
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


def direct(
    x: Tensor, u: Tensor, angles: AngleMap, norm: nn.Module | None, read: torch.dtype = FULL
) -> tuple[Tensor, ...]:
    """The function around the operators: x', and y if somebody reads."""
    if norm is None:
        return (fused.update(x, u, angles),)
    known = fused.row_norm(None if isinstance(norm, nn.Identity) else norm, x)
    assert known is not None
    return fused.update_and_read(x, u, angles, read, known)


@each("norm", READS)
@each("angles", [PAPER, SMOOTH, LEVEL])
def test_operators_keep_their_contract(angles: AngleMap, norm: nn.Module | None) -> None:
    x, u = (t.detach() for t in pair(2, 3, 16, update=HALF))
    post = angles.post if isinstance(angles.post, Tensor) else None
    scalars = (post, fused.numbers_of(angles))
    known = fused.RowNorm() if norm in READS[:2] else fused.row_norm(norm, x)
    assert known is not None
    weight, shift = (None if t is None else t.detach() for t in (known.weight, known.shift))
    arguments = (x, u, *scalars, None if norm is None else HALF, known.kind, known.eps, weight, shift)
    torch.library.opcheck(torch.ops.geonorm.geodesic_forward.default, arguments)
    stats = torch.ops.geonorm.geodesic_forward(*arguments)[2]
    first, second = incoming(x, HALF)
    for grad in (first, None) if norm is not None else (first,):
        read_grad = None if norm is None else second
        asked = (known.kind, weight, weight is not None, shift is not None)
        torch.library.opcheck(
            torch.ops.geonorm.geodesic_backward.default, (grad, read_grad, x, u, stats, *scalars, *asked)
        )


@each("stream", [FULL, HALF])
@each("path, scalars, gains", [("closed", 3, 0), (nn.Identity(), 3, 0), (RMSNorm(64), 5, 64)])
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
    """One graph without breaks, right values and gradients; no recompilation for new numbers, nor for new shapes if
    they are dynamic."""
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
        compiles(lambda x, u, post: (geodesic_update(x.sin(), u, decay=post, backend="closed"),), dynamic)
        return
    parameters = tuple(drawn(norm).parameters()) if norm is not None else ()
    compiles(lambda x, u, post: direct(x.sin(), u, AngleMap(post=post), norm, HALF), dynamic, parameters)


@pytest.mark.slow
def test_the_closed_form_compiles_for_any_shape() -> None:
    gain = torch.tensor([0.9], requires_grad=True)
    compiles(lambda x, u, post: (geodesic_step(x, u, AngleMap(post=post, gain=gain), backend="closed"),), True, (gain,))


@pytest.mark.parametrize("path", ["closed", "fused", "read", "norm"])
def test_second_derivatives_are_those_of_the_textbook(path: str) -> None:
    """u depends on x, both on one weight; either output may be the only one that is used."""
    learned = {"gain": torch.tensor([0.9], requires_grad=True)} if path == "closed" else {}
    angles = AngleMap(post=0.5, power=2.0, **learned)
    norm = {"read": nn.Identity(), "norm": drawn(LayerNorm(8))}.get(path)
    start, weight = (t.detach().requires_grad_() for t in (pair(4, 8)[0], pair(8, 8)[0]))
    wanted = (start, weight, *learned.values(), *(norm.parameters() if norm is not None else ()))

    def step(x: Tensor, u: Tensor, fast: bool) -> tuple[Tensor, ...]:
        if fast and path != "closed":
            return direct(x, u, angles, norm)
        out = geodesic_step(x, u, angles, backend="closed" if fast else "reference")
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


OTHER = [Doubled(16), watched(), halved(), UnitNorm(16), DyT(16), nn.Identity(), RMSNorm(16).double(), RMSNorm(8)]


@each("norm", OTHER)
def test_other_modules_are_called(norm: nn.Module) -> None:
    assert fused.row_norm(norm, torch.ones(2, 16)) is None


def test_a_number_in_the_memory_of_the_cpu_is_not_copied_to_a_gpu() -> None:
    """A copy in every call would be refused while a CUDA graph is recorded. (meta stands for a GPU.)"""
    x = torch.empty(2, 4, device="meta")
    numbers, flags = launch.arguments_of(torch.tensor([0.5]), [0.0, 1.0, 0.0, 0.3], x)
    assert numbers == [0.5, 1.0, 0.0, 0.3] and flags == {"POST_PTR": False, "SMOOTH": False, "LEVEL": True}
    numbers, flags = launch.arguments_of(torch.ones(1, device="meta"), [0.0, 1.0, 0.5, 0.0], x)
    assert isinstance(numbers[0], Tensor) and numbers[2] == 0.5
    assert flags == {"POST_PTR": True, "SMOOTH": True, "LEVEL": False}


# sharding


SHARDING = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from geonorm.ops import AngleMap, fused, geodesic_step
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
full = torch.randn(2, 4, 6, 16)
post, gains, biases = torch.tensor(0.9), torch.rand(16), torch.rand(16)

def run(x, u, post, *ends):
    norm = fused.RowNorm("layer", 1e-6, *ends) if ends else fused.RowNorm()
    outs = fused.update_and_read(x, u, AngleMap(post=post), torch.bfloat16, norm)
    first = torch.autograd.grad(outs[0], (x, u), torch.ones_like(outs[0]), retain_graph=True)
    return [*outs, *first, *torch.autograd.grad(outs, (x, u, *ends), [torch.ones_like(out) for out in outs])]

for at in (0, 1):
    local = [t.contiguous() for t in full.chunk(2, at + 1)[0]]
    row, sums = (Shard(at),), (Partial(),)
    for ends in ((), (gains, biases)):
        rows = [DTensor.from_local(t, mesh, [Shard(at)]).requires_grad_() for t in local]
        rate, *whole = [DTensor.from_local(t, mesh, [Replicate()]) for t in (post, *ends)]
        found = run(*rows, rate, *(t.requires_grad_() for t in whole))
        true = run(*(t.clone().requires_grad_() for t in local), post, *(t.clone().requires_grad_() for t in ends))
        for a, b, place in zip(found, true, [row] * 6 + [sums] * len(ends), strict=True):
            assert a.placements == place, (a.placements, place)
            torch.testing.assert_close(a.to_local(), b)
x, u = (DTensor.from_local(t, mesh, [Shard(2)]) for t in full)
try:
    fused.update(x, u, AngleMap())
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
