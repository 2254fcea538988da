"""A run that is killed at random moments, again and again, has the result of one that nobody disturbs, bit for bit.

python tests/stateful/kills.py                 20 kills of `geonorm train`
python tests/stateful/kills.py --ranks 2       of torchrun and its ranks
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from oracle import TINY, home, result_of, rows_of, summary_of, write_text

TRAIN = TINY.replace("--evaluation.every 3", "--evaluation.every 99") + " --scheme geonorm --evaluation.average 0.5"


def start(place: Path, out: str, steps: int, ranks: int) -> subprocess.Popen[bytes]:
    launcher = f"-m torch.distributed.run --nproc-per-node {ranks}" if ranks > 1 else ""
    words = f"{launcher} -m geonorm {TRAIN} --model.attn_dropout 0.3 --steps {steps} --out {out}".split()
    return subprocess.Popen([sys.executable, *words], cwd=place, stdout=subprocess.DEVNULL)


def kill(process: int) -> None:
    """It and its children: torchrun gives ranks sessions of their own."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    os.kill(process, signal.SIGKILL)
    for child in children:
        kill(int(child))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    rng, steps, ranks = random.Random(0), 400 * options.kills, options.ranks
    with home() as place:
        write_text(place)
        begun = time.monotonic()
        assert start(place, "short", 2, ranks).wait() == 0
        longest = 2 * (time.monotonic() - begun)
        assert start(place, "straight", steps, ranks).wait() == 0
        for number in range(options.kills):
            running = start(place, "run", steps, ranks)
            time.sleep(rng.uniform(0, longest))
            assert running.poll() is None, "it ended before its last kill"
            kill(running.pid)
            running.wait()
            print(f"kill {number + 1} after step {len(rows_of(place / 'run' / 'metrics.jsonl'))}", flush=True)
        assert start(place, "run", steps, ranks).wait() == 0
        assert summary_of(place / "run") == summary_of(place / "straight")
        assert result_of(place / "run", steps) == result_of(place / "straight", steps)
        print(f"{options.kills} kills, {steps} steps, {ranks} ranks: rows, summary and last checkpoint are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
