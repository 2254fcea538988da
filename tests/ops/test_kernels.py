"""The Triton kernels. Without a GPU their checks run in one process of its own under Triton's interpreter, and the
kernels are compiled for a GPU that is not there. With a GPU: `pytest tests/ops -m gpu` runs the same checks on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import geonorm
from geonorm.ops import AngleMap, geodesic_step, geodesic_step_read, launch

from ..rows import each
from . import kernel_tools as tools, norm_checks as on_norms

pytest.importorskip("triton")
from . import kernel_checks as checks

SOURCE = str(Path(geonorm.__file__).parents[1])
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_kernels_under_the_interpreter() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": SOURCE}
    # Triton 3.6 itself takes a number out of an array of one number when a loop begins at a tensor
    known = "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"
    command = [sys.executable, "-W", "error", "-W", known, "-m", checks.__name__]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": passed") == len(checks.CHECKS) == 30


COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver
from geonorm.ops import kernels, launch

class Gpu:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

driver.set_active(Gpu())
CompiledKernel.run = property(lambda kernel: lambda *_: None)
CompiledKernel.launch_metadata = lambda *_: None
bf16 = torch.bfloat16
for dim, rule, third, vectors, norm in (
    (64, "geodesic", 0.0, "", "none"), (64, "geodesic", 0.3, "", "none"), (768, "geodesic", 0.0, "", "layer"),
    (768, "rms", 1e-6, "", "layer"), (4096, "rms", 1e-6, "abc", "layer"),
):
    x, u, gains = (torch.ones(*shape, dtype=bf16) for shape in ((16, dim), (16, dim), (dim,)))
    a, b, c = (gains if name in vectors else None for name in "abc")
    middle = (torch.tensor(1.0) if dim == 64 and not third else a, b, c, rule, [1.0, 0.7, third])
    ends = (None, None) if norm == "none" else (gains, gains)
    stats = launch.forward(x, u, *middle, bf16, norm, 1e-6, *ends)[1]
    wanted = [name in vectors for name in "abc"] + [norm != "none"] * 2
    launch.backward(x, x, x, u, stats, *middle, norm, ends[0], wanted)
for kernel in (kernels.forward_kernel, kernels.backward_kernel):
    for built in kernel.device_caches[0][0].values():
        ptx = built.asm["ptx"]
        assert len(built.asm["cubin"]) > 1000
        assert "ld.global.v4" in ptx and "st.global.v4" in ptx, "memory is not read and written by 16 bytes"
        assert "cvt.rn.bf16" in ptx and "cvt.rz.bf16" not in ptx, "bf16 is not rounded to nearest"
        print(kernel.__name__, "built")
"""


def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """Triton's compiler and ptxas need no GPU: what is launched compiles for sm_90, with 16-byte accesses."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": SOURCE, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPILE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("built") == 10


@each("dim", [1, 2, 63, 128, 129, 768, 1024, 1025, 4096, 8192, 16384])
@each("backward, normed", [(False, False), (True, False), (True, True)])
def test_launch_settings(dim: int, backward: bool, normed: bool) -> None:
    block, rows, warps = launch.settings(dim, backward, normed)
    assert dim <= block < 2 * dim and block & (block - 1) == 0
    assert rows & (rows - 1) == 0 and warps & (warps - 1) == 0 and 1 <= warps <= 32
    assert block * rows <= max(512, block) and block * rows / (32 * warps) <= (16 if normed else 32)


@pytest.mark.parametrize("warps", [1, 4, 16])
def test_programs_that_keep_sums_fill_a_gpu_and_no_more(warps: int) -> None:
    cpu = torch.device("cpu")
    assert launch.programs_for(cpu, 3, warps, True) == min(3, max(1, 12 // warps))
    assert launch.programs_for(cpu, 10**6, warps, False) * warps == 16


@gpu
@needs_gpu
@each("name", checks.CHECKS)
def test_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEONORM_BACKEND", "triton")
    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN
    try:
        checks.CHECKS[name]("cuda")
    finally:
        torch.use_deterministic_algorithms(False)


def inputs(rows: int, dim: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    x, u, grad = tools.sample(rows, dim, "cuda", (dtype, dtype))
    return [x.requires_grad_(), u.requires_grad_(), grad]


@gpu
@needs_gpu
@each("dtype", [torch.float32, torch.bfloat16])
@each("dim", [1024, 1536, 2048, 3072, 4096, 5120, 8192, 16384])
def test_wide_rows_on_a_gpu(dim: int, dtype: torch.dtype) -> None:
    angles = AngleMap(post=torch.tensor(0.5, device="cuda"))
    x, u, grad = inputs(33, dim, dtype)
    tools.compare(tools.run(x, u, grad, angles), tools.truth(x, u, grad, angles))
    x, u, grad = inputs(3001, dim, dtype)
    u, grads = u.clamp(-3, 3), on_norms.pair_of(grad)
    for norm in on_norms.norms(dim, "cuda")[::2] if dim <= launch.MAX_NORM_DIM else []:
        found, again = (on_norms.run(x, u, grads, angles, norm, None) for _ in range(2))
        on_norms.agree(found, on_norms.truth(x, u, grads, angles, norm, found["out"]), grads, norm)
        assert all(torch.equal(found[name], again[name]) for name in found)


@gpu
@needs_gpu
def test_auto_takes_the_kernels_on_a_gpu() -> None:
    x, u, _ = inputs(4, 64)
    assert "Fused" in type(geodesic_step(x, u, AngleMap()).grad_fn).__name__
    assert "Fused" not in type(geodesic_step(x.double(), u, AngleMap()).grad_fn).__name__
    learned = AngleMap(gain=torch.ones(1, device="cuda", requires_grad=True))
    assert "ClosedForm" in type(geodesic_step(x, u, learned).grad_fn).__name__
    assert geonorm.ops.backends()["auto"] == "triton"


@gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")  # torch's own compiler's
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_around_the_kernels(dynamic: bool) -> None:
    def f(x: Tensor, u: Tensor, post: Tensor) -> tuple[Tensor, Tensor]:
        out, y = geodesic_step_read(x * 2, u + 1, AngleMap(post=post), torch.bfloat16)
        return out.sin(), y.float() * 3

    compiled, post = torch.compile(f, fullgraph=True, dynamic=dynamic), torch.tensor(0.5, device="cuda")
    for rows in (64, 96):
        x, u, _ = inputs(rows, 128, torch.float32)
        for out, same in zip(compiled(x, u, post), f(x, u, post), strict=True):
            torch.testing.assert_close(out, same, rtol=1e-2 if out.dtype != torch.float32 else 1e-5, atol=1e-2)
        grads = [torch.autograd.grad(sum(o.sum() for o in g(x, u, post)), (x, u)) for g in (compiled, f)]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@gpu
@needs_gpu
def test_a_cuda_graph_holds_the_kernels() -> None:
    x, u, grad = inputs(64, 768)
    post = torch.tensor(0.5, device="cuda")

    def f() -> tuple[Tensor, ...]:
        out = geodesic_step(x, u, AngleMap(post=post))
        return out.detach(), *torch.autograd.grad(out, (x, u), grad)

    expected = f()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = f()
    graph.replay()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@gpu
@needs_gpu
def test_more_than_2_to_the_31_numbers() -> None:
    rows = 2**31 // 4096 + 2
    if torch.cuda.mem_get_info()[0] < 6 * rows * 4096 * 2:
        pytest.skip("needs 26 GB of GPU memory")
    x = torch.ones(rows, 4096, device="cuda", dtype=torch.bfloat16)
    u = torch.zeros_like(x)
    u[-1, ::2], u[-1, 1::2] = 1.0, -1.0
    x.requires_grad_(), u.requires_grad_()
    out = geodesic_step(x, u, AngleMap(post=0.5))
    tail = tools.run(x[-2:], u[-2:], torch.ones_like(x[-2:]), AngleMap(post=0.5))
    assert torch.equal(out[-2:], tail[0]) and torch.equal(out[0], x[0])
    (du,) = torch.autograd.grad(out, u, torch.ones_like(out))
    assert torch.equal(du[-2:], tail[2])
