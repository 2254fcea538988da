"""Start-up times in fresh processes: `import geonorm` over `import torch`, and `geonorm --help`.

python benchmarks/start_up.py [--runs 20] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

COMMANDS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import torch, geonorm": ["-c", "import torch, geonorm; geonorm.Residual; geonorm.geodesic_update"],
    "geonorm --help": ["-m", "geonorm", "--help"],
    "geonorm train --help": ["-m", "geonorm", "train", "--help"],
}


def seconds(arguments: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(args.runs + 1):  # the first round warms the disk cache
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    result = {name: {"median": median(values[1:]), "best": min(values[1:])} for name, values in times.items()}
    pairs = zip(times["import torch, geonorm"][1:], times["import torch"][1:], strict=True)
    result["import geonorm after torch"] = {"median": median(a - b for a, b in pairs)}
    for name, row in result.items():
        print(f"{name:28} {row['median']:.3f} s")
    if args.out:
        import torch  # not before the processes that are timed

        from geonorm.lab.runs import environment

        about = environment.collect(torch.device("cpu"), torch.get_num_threads())
        kept = {"environment": about, "runs": args.runs, "seconds": result}
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
