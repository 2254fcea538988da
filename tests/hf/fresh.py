"""Code in a fresh interpreter, where the package can be kept out of reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "geonorm":
            raise ImportError("geonorm is not installed here")
sys.meta_path.insert(0, Without())
"""
"""Before any other code: from here on `import geonorm` fails."""


def python(code: str, *words: Any, path: str = "") -> None:
    """Runs code in a fresh interpreter, which is shown this package only through `path`."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["HF_MODULES_CACHE"] = str(Path(words[0]).parent / "modules")
    environment.update({"PYTHONPATH": path} if path else {})
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
