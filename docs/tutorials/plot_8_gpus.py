"""
Plan a run on many GPUs
=======================

``--dry-run`` says what a run needs before anything is read: memory by part, tokens a step, what to change. It
needs no GPU. A model of 1.3B parameters on eight H100:
"""

import subprocess


def plan(*options: str) -> str:
    command = ["geonorm", "train", "--dry-run", "--scheme", "pre", "--runtime.device", "h100"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    return done.stdout.partition("\n}\n")[2]


print(plan("--preset", "1.3b", "--world-size", "8"))

# %%
# A plan that does not fit says what to change; the run itself would be refused with the same line. 7B on one H100:

print(plan("--preset", "7b", "--world-size", "1"))

# %%
# On the machines themselves the run is ``torchrun --nproc-per-node 8 -m geonorm train --preset 1.3b --scheme pre``
# with ``--data``, ``--steps`` and ``--out``.
