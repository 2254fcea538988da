"""Code in an interpreter without this package: a child of a process that has imported torch and transformers alone."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

SOURCE = str(Path(__file__).parents[2] / "src")
"""Where this package is found."""

WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "geonorm":
            raise ImportError("geonorm is not installed here")
sys.meta_path.insert(0, Without())
"""
"""Before any other code: from here on `import geonorm` fails."""

SERVER = """
import json, os, sys, traceback
import torch, transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, GenerationMixin, LlamaForCausalLM
assert "geonorm" not in sys.modules
for line in sys.stdin:
    code, words, path, modules = json.loads(line)
    child = os.fork()
    if not child:
        try:
            sys.argv, sys.path[:0] = ["-c", *words], path
            transformers.dynamic_module_utils.HF_MODULES_CACHE = modules
            exec(compile(code, "fresh", "exec"), {"__name__": "__main__"})
        except BaseException:
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Forks for every line of JSON that it reads, and answers with how the child ended."""


@cache
def server() -> tuple[subprocess.Popen[str], Path]:
    """Started once, ended by the end of its input; and the file of what its children say on stderr."""
    import tempfile

    errors = tempfile.NamedTemporaryFile("w", delete=False)  # noqa: SIM115 open as long as the server
    running = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    )
    return running, Path(errors.name)


def python(code: str, *words: Any, path: str = "") -> None:
    """Runs code where this package is not imported yet, and found only through `path`."""
    running, errors = server()
    before = errors.stat().st_size
    job = (code, [*map(str, words)], [path] * bool(path), str(Path(words[0]).parent / "modules"))
    stdin, stdout = cast(IO[str], running.stdin), cast(IO[str], running.stdout)
    print(json.dumps(job), file=stdin, flush=True)
    while not (answer := stdout.readline()).strip().lstrip("-").isdigit():
        assert answer, errors.read_text()[before:]  # anything else was printed by the code
    assert int(answer) == 0, errors.read_text()[before:][-2000:]
