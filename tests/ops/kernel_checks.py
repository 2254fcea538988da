"""What the Triton kernels must do, as functions of a device: run on a GPU by test_kernels.py, and on a CPU as a script
under TRITON_INTERPRET=1. Truth is the reference in fp64 on the same inputs. Fresh memory is filled with NaN throughout,
so that an element that no kernel writes shows."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable

import norm_checks
import numpy as np
import step_checks
import torch

Check = Callable[[str], None]
CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): value
    for module in (step_checks, norm_checks)
    for name, value in vars(module).items()
    if name.startswith("check_")
}


def main(device: str) -> int:
    """Runs all checks, prints one line each and every traceback; the number of failures."""
    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN
    np.seterr(all="ignore")  # the interpreter computes with numpy, which warns of NaN and underflow
    failed = 0
    for name, check in CHECKS.items():
        start = time.process_time()
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

    if len(sys.argv) == 1:
        os.environ["GEONORM_BACKEND"] = "triton"  # what goes through Residual takes the kernels too
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cpu"))
