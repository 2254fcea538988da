"""The operators around the kernels, on their CPU form: schemas, compilation, two outputs, sharding, dispatch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import geonorm
from geonorm import Residual, Site, geodesic_update
from geonorm.errors import ConfigError
from geonorm.norms import LayerNorm
from geonorm.ops import AngleMap, available, backends, fused, fused_norm, geodesic_step, geodesic_step_read, launch

# torch's own compiler makes an instance of autograd functions
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")


def pair(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    x, u = torch.randn(2, *(shape or (5, 16)), generator=generator)
    return x.requires_grad_(), u.to(dtype).requires_grad_()


def learned() -> AngleMap:
    gain, bias = (torch.tensor(v, requires_grad=True) for v in (0.9, 0.02))
    return AngleMap(post=torch.tensor(0.5), gain=gain, bias=bias, power=2.0)


@pytest.mark.parametrize("angles", [AngleMap(post=0.5), learned()], ids=["plain", "learned"])
@pytest.mark.parametrize("name", ["geodesic_forward", "geodesic_forward_read", "geodesic_backward"])
def test_operators_keep_their_contract(name: str, angles: AngleMap) -> None:
    x, u = (t.detach() for t in pair(2, 3, 8, dtype=torch.bfloat16))
    tensors = [p.detach() if isinstance(p, Tensor) else None for p in fused.fields(angles)[:4]]
    numbers = [0.0 if isinstance(p, Tensor) else p for p in fused.fields(angles)[:4]]
    scalars = (*tensors, [*numbers, angles.max_angle, 1 / angles.power])
    op = getattr(torch.ops.geonorm, name).default
    arguments: tuple[object, ...] = (x, u, *scalars)
    if name == "geodesic_forward_read":
        arguments = (*arguments, torch.bfloat16)
    elif name == "geodesic_backward":
        stats = torch.ops.geonorm.geodesic_forward(x, u, *scalars)[1]
        arguments = (x, u, x, u, stats, *scalars, isinstance(angles.gain, Tensor))
    torch.library.opcheck(op, arguments)


def same(found: tuple[Tensor, ...], true: tuple[Tensor, ...], tolerance: float = 2e-6) -> None:
    for a, b in zip(found, true, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("read", [None, torch.float32, torch.bfloat16])
def test_the_function_around_them_equals_the_closed_form(read: torch.dtype | None) -> None:
    angles = learned()
    wanted = (*pair(), angles.gain, angles.bias)
    x, u = wanted[:2]
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, *x.shape, generator=generator)
    if read is None:
        found = (fused.update(x, u, angles),)
        true = (geodesic_step(x, u, angles, backend="closed"),)
    else:
        found = fused.update_and_read(x, u, angles, read)
        true = geodesic_step_read(x, u, angles, read, backend="closed")
    same(found, true)
    grads = (first, second.to(read))[: len(found)]
    same(*(torch.autograd.grad(o, wanted, grads, retain_graph=True) for o in (found, true)), 1e-5)
    # either output alone
    for a, b, g in zip(found, true, grads, strict=True):
        same(*(torch.autograd.grad(o, wanted, g, retain_graph=True) for o in (a, b)), 1e-5)


def test_two_outputs_of_one_dtype_are_one_memory() -> None:
    x, u = pair()
    out, y = fused.update_and_read(x, u, AngleMap(), torch.float32)
    assert out.data_ptr() == y.data_ptr() and torch.equal(out, y)
    with torch.no_grad():
        out, y = fused.update_and_read(x, u, AngleMap(), torch.float32)
    assert torch.equal(out, y)


def test_saves_inputs_and_three_scalars_a_row() -> None:
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.data_ptr()] = t.numel() * t.element_size()
        return t

    x, u = pair(7, 64, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        fused.update_and_read(x, u, AngleMap(post=0.5), torch.bfloat16)
    assert sum(saved.values()) == 7 * 64 * (4 + 2) + 7 * 3 * 4


def compiles(f: Callable[..., tuple[Tensor, ...]], dynamic: bool) -> None:
    """One graph without breaks, right values and gradients; no recompilation for new numbers, nor for new shapes if
    they are dynamic."""
    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")

    def both(rows: int, decay: float) -> None:
        x, u = pair(rows, 16)
        post = torch.tensor(decay, requires_grad=True)
        outs = [g(x, u, post) for g in (f, compiled)]
        same(outs[1], outs[0])
        grads = [torch.autograd.grad([o.float().square().sum() for o in out], (x, u, post)) for out in outs]
        same(grads[1], grads[0], 1e-5)

    both(6, 1.0)
    with torch.compiler.set_stance("fail_on_recompile"):
        both(9 if dynamic else 6, 0.5)


@pytest.mark.parametrize("read", [None, torch.bfloat16, torch.float32])
def test_kernels_compile_into_one_graph(read: torch.dtype | None) -> None:
    if read is None:
        compiles(lambda x, u, post: (fused.update(x.sin(), u, AngleMap(post=post)).cos(),), dynamic=False)
    else:
        compiles(lambda x, u, post: fused.update_and_read(x, u, AngleMap(post=post), read), dynamic=True)


@pytest.mark.slow
def test_the_closed_form_compiles_for_any_shape() -> None:
    compiles(lambda x, u, post: (geodesic_update(x, u, decay=post, backend="closed"),), dynamic=True)


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.attn, self.mlp = (
            Residual(nn.Linear(16, 16), "geonorm", Site(layer, kind, 4), 16) for kind in ("attn", "mlp")
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.attn(x))
        return out


def test_layers_share_one_compiled_graph() -> None:
    """Blocks differ in a buffer only: the second and third compile nothing."""
    torch.compiler.reset()
    graphs: list[object] = []

    def count(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph

    blocks = []
    for layer in range(4):
        block = Block(layer)
        block.compile(fullgraph=True, backend=count)
        blocks.append(block)
    x = torch.randn(3, 16)
    x = blocks[0](x).detach()
    seen = len(graphs)
    assert seen == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        for block in blocks[1:]:
            x = block(x).detach()
    assert len(graphs) == seen


def test_checkpointing_and_autocast() -> None:
    x, u = pair()
    plain = torch.autograd.grad(fused.update(x, u, AngleMap(post=0.5)).sum(), (x, u))
    again = checkpoint(lambda a, b: fused.update(a, b, AngleMap(post=0.5)), x, u, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(again.sum(), (x, u)), plain, strict=True):
        assert torch.equal(a, b)
    linear = nn.Linear(16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, y = fused.update_and_read(x, linear(x), AngleMap(post=0.5), torch.bfloat16)
    assert (out.dtype, y.dtype) == (torch.float32, torch.bfloat16)
    dx, dw = torch.autograd.grad(out.sum() + y.float().sum(), (x, linear.weight))
    assert dx.dtype == dw.dtype == torch.float32 and dw.ne(0).any()


@pytest.mark.parametrize("path", ["closed", "fused", "read", "norm"])
def test_second_derivatives_are_those_of_the_textbook(path: str) -> None:
    """u depends on x, both on one weight; either output may be the only one that is used."""
    angles = AngleMap(post=0.5, gain=torch.tensor([0.9], requires_grad=True), power=2.0)
    norm = LayerNorm(8)
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    start, weight = (t.detach().requires_grad_() for t in (pair(4, 8)[0], pair(8, 8)[0]))
    wanted = (start, weight, angles.gain, *(norm.parameters() if path == "norm" else ()))

    def step(x: Tensor, u: Tensor, backend: str) -> tuple[Tensor, ...]:
        if path == "norm":
            known = fused_norm.row_norm(norm, x)
            assert known is not None
            if backend == "fast":
                return fused_norm.update_and_norm(x, u, angles, known, x.dtype)
            return geodesic_step_read(x, u, angles, backend="reference", norm=norm)
        if backend == "reference" or path == "closed":
            out = geodesic_step(x, u, angles, backend="reference" if backend == "reference" else "closed")
            return (out, out) if path == "read" else (out,)
        return fused.update_and_read(x, u, angles, x.dtype) if path == "read" else (fused.update(x, u, angles),)

    def twice(backend: str, last: bool) -> tuple[Tensor, ...]:
        x = start @ weight
        outs = step(x, torch.tanh(x @ weight), backend)
        loss = sum(out.pow(3).sum() for out in (outs[-1:] if last else outs))
        first = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first if g is not None), wanted, allow_unused=True)

    for last in (False, True):
        for found, true in zip(twice("fast", last), twice("reference", last), strict=True):
            assert (found is None) == (true is None)
            if found is not None:
                assert true.norm() > 1e-3
                assert (found - true).norm() <= 1e-4 * true.norm()


def test_inductor_backend_runs_a_compiled_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def stand_in(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *a: calls.append(1) or f(*a)  # type: ignore[func-returns-value]

    from geonorm.ops import geodesic

    monkeypatch.setattr(torch, "compile", stand_in)
    geodesic.compiled.cache_clear()
    x, u = pair()
    assert torch.equal(geodesic_update(x, u, backend="inductor"), geodesic_update(x, u, backend="closed"))
    geodesic_update(x, u, backend="inductor")
    assert len(calls) == 2
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # inside a compiled model it is part of the graph
    geodesic_update(x, u, backend="inductor")
    geodesic.compiled.cache_clear()
    assert len(calls) == 2


def test_a_number_in_the_memory_of_the_cpu_is_not_copied_to_a_gpu() -> None:
    """A copy in every call would be refused while a CUDA graph is recorded. (meta stands for a GPU.)"""
    arguments, flags = launch.scalars(
        torch.empty(2, 4, device="meta"),
        [None, torch.tensor([0.5]), torch.ones(1, device="meta"), torch.tensor(0.25)],
        [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
    )
    assert arguments[:2] == [1.0, 0.5] and arguments[3] == 0.25 and isinstance(arguments[2], Tensor)
    assert flags == {
        "PRE_PTR": False, "POST_PTR": False, "GAIN_PTR": True, "BIAS_PTR": False, "FINITE": False, "BIASED": True
    }  # fmt: skip


# dispatch


@pytest.mark.parametrize(
    ("device", "types", "dim", "says"),
    [
        ("cpu", (torch.float32,), 8, "on cpu, not cuda: use backend='auto'"),
        ("cuda", (torch.float32, torch.float64), 8, "not float64"),
        ("cuda", (torch.float32,), 16385, "1 to 16384"),
        ("cuda", (torch.float32,), 0, "not 0"),
        ("cuda", (torch.float32, torch.bfloat16), 16384, ""),
    ],
)
def test_why_not_triton(
    device: str, types: tuple[torch.dtype, ...], dim: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(available, "has_triton", lambda: True)
    reason = available.why_not_triton(torch.device(device), types, dim)
    assert says in reason and bool(says) == bool(reason) and "\n" not in reason


def test_asking_for_kernels_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x, u = pair()
    monkeypatch.setattr(available, "has_triton", lambda: False)
    with pytest.raises(ConfigError, match=r"not installed: pip install \"geonorm\[kernels\]\""):
        geodesic_update(x, u, backend="triton")
    monkeypatch.setattr(available, "has_triton", lambda: True)
    with pytest.raises(ConfigError, match="on cpu, not cuda") as error:
        geodesic_update(x, u, backend="triton")
    assert "\n" not in str(error.value)
    monkeypatch.setenv("GEONORM_BACKEND", "triton")
    with pytest.raises(ConfigError, match="unset GEONORM_BACKEND"):
        geodesic_update(x, u)
    assert geodesic_update(x, u, backend="closed").shape == x.shape  # an argument beats the environment


def test_backends_say_what_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEONORM_BACKEND", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert backends("cpu")["auto"] == "closed"
    monkeypatch.setattr(available, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backends("cuda")["auto"] == backends()["auto"] == "triton"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backends("cuda") == {
        "auto": "closed",
        "reason": "closed form in PyTorch; no fused kernels: no CUDA device is visible",
    }
    monkeypatch.setattr(available, "has_triton", lambda: False)
    assert "pip install" in backends("cuda")["reason"]
    monkeypatch.setenv("GEONORM_BACKEND", "triton")
    assert backends("cpu")["auto"] == "triton" and "cannot run" in backends("cpu")["reason"]
    monkeypatch.setenv("GEONORM_BACKEND", "reference")
    assert backends("cuda") == {"auto": "reference", "reason": "GEONORM_BACKEND asks for it"}


def test_the_update_does_not_import_triton() -> None:
    source = str(Path(geonorm.__file__).parents[1])
    script = "import sys, torch\nfrom geonorm import geodesic_update\n"
    script += "geodesic_update(torch.ones(2, 4), torch.ones(2, 4)); assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": source}, check=True)


# sharding


SHARDING = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from geonorm.errors import ConfigError
from geonorm.ops import AngleMap, fused
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
full = torch.randn(2, 4, 6, 16)
gain = torch.tensor(0.9)
for at in (0, 1):
    local = full.chunk(2, at + 1)[0]
    x, u = (DTensor.from_local(t.contiguous(), mesh, [Shard(at)]).requires_grad_() for t in local)
    g = DTensor.from_local(gain, mesh, [Replicate()]).requires_grad_()
    out, y = fused.update_and_read(x, u, AngleMap(gain=g), torch.bfloat16)
    assert out.placements == y.placements == (Shard(at),), (out.placements, y.placements)
    dx, du, dg = torch.autograd.grad(out, (x, u, g), torch.ones_like(out))
    assert dx.placements == du.placements == (Shard(at),) and dg.placements == (Partial(),), dg.placements
    a, b, c = (t.detach().clone().requires_grad_() for t in (*local, gain))
    plain = fused.update(a, b, AngleMap(gain=c))
    for found, true in zip((out, dx, du, dg), (plain, *torch.autograd.grad(plain.sum(), (a, b, c))), strict=True):
        torch.testing.assert_close(found.to_local(), true)
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
