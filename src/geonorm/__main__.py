"""`python -m geonorm` is the command `geonorm`."""

import sys

from .cli.main import main

sys.exit(main())
