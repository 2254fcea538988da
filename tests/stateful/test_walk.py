"""A few walks of a seed of their own; `make stateful` takes as many as fit into the time that it is given."""

import subprocess
import sys
from pathlib import Path


def test_walks_end_as_the_oracle_says() -> None:
    words = [Path(__file__).with_name("walk.py"), "--walks", "10", "--seconds", "40"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
