"""`python -m geonorm` is the command `geonorm`."""

import sys

from .cli import main

sys.exit(main())
