"""Code in an interpreter of its own, without this package unless a path to it is given."""

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


def python(code: str, *words: Any) -> None:
    """Runs code in a new process, with a cache of modules from elsewhere beside its first argument."""
    modules = {"HF_MODULES_CACHE": str(Path(words[0]).parent / "modules")}
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, env={**os.environ, **modules}
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
