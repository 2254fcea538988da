"""Kills a training run with SIGKILL again and again, several times inside a save, and compares what is left at the end
with the same run left alone: weights, optimizer state and losses must be equal bit for bit.

    python benchmarks/kill.py --kills 50 [--ranks 2] [--seed 0] [--out benchmarks/results/kill.json]

Every life is a process of its own that runs the real command, forked from a server that has imported torch already, so
that fifty lives take minutes. A third of the kills waits for a checkpoint to be half written, a fifth comes before the
first step (while the checkpoint is loaded), the rest at any moment. With several ranks the killed one is drawn at
random; the others must end by themselves.

lost: kills after which the newest checkpoint was older than before. corrupt: checkpoints that a life found damaged.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import runpy
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PRELOAD = (
    "geonorm.cli.main geonorm.lab.train.loop torch._dynamo torch._decomp.decompositions_for_jvp yaml tyro"
).split()
WORDS = "a run that is killed at any moment goes on from its last checkpoint as if nothing had happened".split()
SAVE_EVERY = 5


def arguments(text: Path, out: Path, steps: int) -> list[str]:
    return (
        f"train --model.layers 2 --model.width 32 --model.heads 2 --model.hidden 64 --model.context 16 "
        f"--model.vocab_size 257 --tokens.tokenizer byte --runtime.device cpu --runtime.tensorboard false "
        f"--evaluation.tokens 256 --evaluation.trace_tokens 0 --evaluation.every {steps} "
        f"--checkpoint.every {SAVE_EVERY} --steps {steps} --batch_size 4 --scheme geonorm(learn=gain) "
        f"--data {text} --out {out}"
    ).split()


class Life:
    """One process, or one world of processes, from its start to its end."""

    def __init__(self, command: list[str], ranks: int, log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = []
        for rank in range(ranks):
            environment = {"GEONORM_CACHE": os.environ["GEONORM_CACHE"]}
            if ranks > 1:
                world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
                environment |= {key: str(value) for key, value in world.items()} | {"MASTER_ADDR": "127.0.0.1"}
            known = {"command": command, "environment": environment, "log": str(log)}
            self.processes.append(context.Process(target=runpy.run_path, args=(__file__, known, "life")))
        for process in self.processes:
            process.start()

    def kill(self, which: int) -> bool:
        """Whether the others have ended by themselves."""
        self.processes[which].kill()
        return self.wait(60)

    def wait(self, seconds: float) -> bool:
        """Whether all have ended by themselves in time; what has not is killed."""
        ended = True
        for process in self.processes:
            process.join(seconds)
            if process.is_alive():
                ended = False
                process.kill()
                process.join()
        return ended

    @property
    def over(self) -> bool:
        return not all(process.is_alive() for process in self.processes)


def kill(kills: int, steps: int, ranks: int = 1, seed: int = 0, folder: Path | None = None) -> dict[str, Any]:
    """The whole test; returns its result."""
    from geonorm.lab import checkpoint

    moments = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        base = Path(made)
        text = base / "text.txt"
        text.write_text("".join(" ".join(moments.choices(WORDS, k=8)) + ".\n" for _ in range(500)))
        more = ["--runtime.parallel", "fsdp"] if ranks > 1 else []
        whole, run = base / "whole", base / "run"
        begun = time.monotonic()
        assert Life([*arguments(text, whole, steps), *more], ranks, base / "whole.log").wait(600)
        command = [*arguments(text, run, steps), *more]
        done: list[dict[str, Any]] = []
        lost = hung = 0
        while len(done) < kills:
            before = newest(run)
            life = Life(command, ranks, base / "run.log")
            moment = wait_for_a_moment(life, run, moments)
            if life.over:
                break
            hung += not life.kill(moments.randrange(ranks))
            half = bool(list((run / "checkpoints").glob(".step-*")))
            done.append({"at": moment, "inside_a_save": half, "step": last_row(run), "checkpoint": newest(run)})
            lost += newest(run) < before
        last = Life(command, ranks, base / "run.log")
        hung += not last.wait(600)
        log = (base / "run.log").read_text()
        folders = [path / "checkpoints" / f"step-{steps}" for path in (whole, run)]
        return {
            "kills": len(done),
            "ranks": ranks,
            "inside_a_save": sum(one["inside_a_save"] for one in done),
            "before_the_first_step": sum(one["at"] == "start" for one in done),
            "resumed": log.count("resuming"),
            "lost": lost,
            "corrupt": log.count("falling back"),
            "hung": hung,
            "finished": checkpoint.saved_steps(run / "checkpoints")[-1:] == [steps],
            "weights_equal": all(p.exists() for p in folders) and same(folders, "model"),
            "optimizer_equal": all(p.exists() for p in folders) and same(folders, "optimizer"),
            "losses_equal": losses(whole) == losses(run),
            "steps": steps,
            "saved_every": SAVE_EVERY,
            "seed": seed,
            "seconds": round(time.monotonic() - begun),
        }


def wait_for_a_moment(life: Life, run: Path, moments: random.Random) -> str:
    """Waits until the life is to be ended, and says what kind of moment that is."""
    kind = moments.choices(("start", "save", "any"), (0.2, 0.35, 0.45))[0]
    begun, start = time.monotonic(), last_row(run)
    if kind == "start":
        pause = moments.uniform(0, 1.0)
        while not life.over and time.monotonic() - begun < pause:
            time.sleep(0.002)
        return kind
    while not life.over and last_row(run) <= start:  # it makes progress first
        time.sleep(0.005)
    if kind == "any":
        time.sleep(moments.uniform(0, 0.5))
        return kind
    time.sleep(moments.uniform(0, 0.2))
    while not life.over and not list((run / "checkpoints").glob(".step-*")):
        pass
    time.sleep(moments.uniform(0, 0.01))
    return kind


def newest(run: Path) -> int:
    from geonorm.lab import checkpoint

    return max(checkpoint.saved_steps(run / "checkpoints"), default=-1)


def last_row(run: Path) -> int:
    from geonorm.lab.runs.folder import read_rows

    return max((row["step"] for row in read_rows(run / "metrics.jsonl")), default=0)


def losses(run: Path) -> list[tuple[Any, ...]]:
    from geonorm.lab.runs.folder import read_rows

    return [
        (row["step"], row["loss"], row["grad_norm"], row.get("val_loss")) for row in read_rows(run / "metrics.jsonl")
    ]


def same(folders: list[Path], kind: str) -> bool:
    """Whether two checkpoints hold the same tensors, bit for bit."""
    import torch

    from geonorm.lab import storage

    first, second = (storage.read_tensors(path, kind) for path in folders)
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=None, help="of the run; 40 for each kill when not given")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("GEONORM_CACHE", tempfile.mkdtemp())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    result = kill(options.kills, options.steps or 40 * options.kills, options.ranks, options.seed)
    print(json.dumps(result, indent=1))
    if options.out:
        import torch

        from geonorm.lab.runs import environment

        about = environment.collect(torch.device("cpu"), threads=1)
        options.out.write_text(json.dumps({**result, "environment": about}, indent=1) + "\n")
    good = result["weights_equal"] and result["optimizer_equal"] and result["losses_equal"]
    return (
        0
        if good and result["kills"] == options.kills and not any(result[bad] for bad in ("lost", "corrupt", "hung"))
        else 1
    )


if __name__ == "life":
    command, environment, log = (globals()[name] for name in ("command", "environment", "log"))
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
    import torch

    from geonorm.cli.main import main as geonorm

    torch.set_num_threads(1)
    sys.exit(geonorm(command))
elif __name__ == "__main__":
    sys.exit(main())
