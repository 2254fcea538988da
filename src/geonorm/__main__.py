"""`python -m geonorm` is the command `geonorm`.

A rank of torchrun ends without the interpreter's own end: a thread of gloo that lets go of its tensors then would need
the interpreter's lock, and abort the process.
"""

import os
import sys

from .cli.main import main
from .output import placed

if placed():
    os._exit(main())
sys.exit(main())
