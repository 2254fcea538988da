"""What the Triton kernels must do, as functions of a device: run on a GPU by test_kernels.py, and on a CPU as a script
under TRITON_INTERPRET=1. Truth is the reference in fp64 on the same inputs. Fresh memory is filled with NaN throughout,
so that an element that no kernel writes shows."""

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from geonorm.ops.kernels import line_of

from . import norm_checks, step_checks, sum_checks


@triton.jit
def far_kernel(base, out, length):
    tl.store(out, line_of(base, 4, length, 0).to(tl.int64) - base.to(tl.int64))


def check_lines_beyond_32_bits(device: str) -> None:
    """Four lines of 2^30 numbers lie 2^32 numbers away; nothing is read there."""
    base, out = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    far_kernel[(1,)](base, out, 2**30)
    assert out.item() == 4 * 2**32


Check = Callable[[str], None]
CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): value
    for module in (vars(step_checks), vars(norm_checks), vars(sum_checks), globals().copy())
    for name, value in module.items()
    if name.startswith("check_")
}


def round_as_a_gpu() -> None:
    """Lets Triton's interpreter round to bf16, where it cuts bits off and hardware does not: it then shows the errors
    of a kernel's own arithmetic. How stores are rounded is for a GPU to show, by the same checks."""
    convert = interpreter._convert_float

    def rounded(numbers: Any, source: Any, target: Any, mode: Any) -> Any:
        if target != tl.bfloat16:
            return convert(numbers, source, target, mode)
        return torch.from_numpy(numbers.copy()).bfloat16().view(torch.int16).numpy().view(np.uint16)

    interpreter._convert_float = rounded


def main(device: str) -> int:
    """Runs all checks, prints one line each and every traceback; the number of failures."""
    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN
    round_as_a_gpu()
    np.seterr(all="ignore")  # the interpreter computes with numpy, which warns of NaN and underflow
    failed = 0
    for name, check in CHECKS.items():
        start = time.process_time()
        torch.manual_seed(0)
        try:
            check(device)
            outcome = "passed"
        except Exception:
            failed += 1
            outcome = "FAILED\n" + traceback.format_exc()
        print(f"{name}: {outcome} ({time.process_time() - start:.1f} s)", flush=True)
    return failed


if __name__ == "__main__":
    import os

    os.environ["GEONORM_BACKEND"] = "triton"
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cpu"))
