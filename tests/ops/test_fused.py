"""The operators around the kernels: what they take, how they shard, and operators.py under Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm.norms import DyT, RMSNorm, UnitNorm
from geonorm.ops import fused, launch

from ..rows import each

pytest.importorskip("triton")


def interpret(*command: str) -> str:
    """What Python prints with the kernels under Triton's interpreter; no errors."""
    environment = os.environ | {"PYTHONPATH": str(Path(geonorm.__file__).parents[1]), "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_operators_under_the_interpreter() -> None:
    assert interpret("-m", "pytest", "-q", "-n", "0", "tests/ops/operators.py").startswith("." * 17)


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
    options = (None, None, "geodesic", [0.0, 1.0, 0.3], x)
    assert launch.weight_arguments(torch.tensor([0.5]), *options) == (None, None, None, 0.5, 1.0, 0.3)
    assert isinstance(launch.weight_arguments(torch.ones(1, device="meta"), *options)[0], Tensor)
