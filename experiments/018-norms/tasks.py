"""Writes the two tasks of experiment 018, text that a model can only predict in part.

    python experiments/018-norms/tasks.py runs/tasks

copy/: lines of 15 letters drawn at random, a mark, and the same letters again; the best loss is 15/32 ln 26 = 1.527
nats a byte, and some 1.575 in windows of 128 bytes, which begin anywhere in a line. addition/: lines 03+95=01 of two
numbers below 97 and their sum modulo 97; the best is 2/9 ln 97 = 1.017, in windows some 1.040.
"""

import argparse
import json
import string
from collections.abc import Callable
from pathlib import Path
from random import Random

LINES = {"train": (64, 4000), "validation": (8, 1000)}
"""Documents of a part, and lines of each."""
LETTERS, PRIME = 15, 97


def write_copy(draw: Random) -> str:
    word = "".join(draw.choices(string.ascii_lowercase, k=LETTERS))
    return f"{word}>{word}\n"


def write_addition(draw: Random) -> str:
    first, second = draw.randrange(PRIME), draw.randrange(PRIME)
    return f"{first:02}+{second:02}={(first + second) % PRIME:02}\n"


TASKS: dict[str, Callable[[Random], str]] = {"copy": write_copy, "addition": write_addition}


def main(out: Path) -> None:
    for task, write_line in TASKS.items():
        folder = out / task
        folder.mkdir(parents=True, exist_ok=True)
        for part, (documents, lines) in LINES.items():
            draw = Random(f"{task} {part}")
            texts = ("".join(write_line(draw) for _ in range(lines)) for _ in range(documents))
            content = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            (folder / f"{part}.jsonl").write_text(content, encoding="utf-8")
        print(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the tasks; the plan reads runs/tasks")
    main(parser.parse_args().out)
