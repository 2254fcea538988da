"""
Plan a run on many GPUs
=======================

``--dry-run`` says what a run needs before anything is read: memory by part, tokens a step, what to change. It
needs no GPU.
"""

import subprocess

plan = "geonorm train --preset 1.3b --scheme pre --dry-run --world-size 8 --runtime.device h100"
print(subprocess.run(plan.split(), capture_output=True, text=True).stdout.partition("\n}\n")[2])
