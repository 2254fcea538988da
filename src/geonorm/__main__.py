"""`python -m geonorm` is the command `geonorm`.

A rank of torchrun ends without the interpreter's own end: a thread of gloo that lets go of its tensors then would need
the interpreter's lock, and abort the process. Nothing is left for that end to do: `main` has closed loggers and
checkpoints, and its lines are out.
"""

import os
import sys
import traceback

from .cli.main import main
from .output import placed

try:
    status = main()
except Exception:  # a fault of the program
    traceback.print_exc()
    status = 1
if placed():
    os._exit(status)
sys.exit(status)
