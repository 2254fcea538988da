"""torchrun itself: a killed rank, a signal to stop; what is written beside the training."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.lab import checkpoint, storage
from geonorm.lab.runs.folder import read_rows
from geonorm.models import Decoder

from ..test_checkpoint import SMALL, weights


def children(process: int) -> list[int]:
    """Ranks that a torchrun has started."""
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc")
def test_torchrun(tiny: list[str], train: Any, losses: Any, after: Any, tmp_path: Path) -> None:
    """torchrun -m geonorm train on 2 ranks, FSDP. A rank is killed: torchrun starts the ranks again and the run goes
    on by itself. SIGTERM, as a cluster sends it: saved, and how long that took is on record. Then `geonorm train` alone
    goes on to the end. Losses are those of one process that nobody disturbed."""
    run, steps = tmp_path / "run", 20000
    options = ["--steps", steps, "--batch_size", 4, "--checkpoint.every", 10, "--evaluation.every", steps]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["-m", "geonorm", "train", *tiny, "--out", str(run), *map(str, options), "--runtime.parallel", "fsdp"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def reach(step: int) -> None:
        while max((row["step"] for row in read_rows(run / "metrics.jsonl")), default=0) < step:
            assert running.poll() is None, running.communicate()
            time.sleep(0.05)

    try:
        reach(25)
        ranks = children(running.pid)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        while set(children(running.pid)) & set(ranks):
            time.sleep(0.05)
        reach(max(row["step"] for row in read_rows(run / "metrics.jsonl")) + 40)
        running.send_signal(signal.SIGTERM)
        while not (run / "summary.json").exists() and running.poll() is None:
            time.sleep(0.01)
        out, err = running.communicate()
    finally:
        running.kill()
    assert out.count("resuming") == 1 and re.search(r"resuming .* at step [1-9]\d*0 of", out), (out, err)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["world_size"] == 2
    stopped = summary["steps"]
    assert checkpoint.saved_steps(run / "checkpoints")[-1] == stopped
    assert f"stopped at step {stopped} of {steps}; saved in {run}" in err

    straight = tmp_path / "straight"
    with after(stopped + 5):
        assert train(run, *options).status == 130
        assert train(straight, *options).status == 130
    assert len(losses(run)) == stopped + 5
    for a, b in zip(losses(run), losses(straight), strict=True):
        assert a[:2] == b[:2] and a[2] == pytest.approx(b[2], rel=1e-4) and a[3] == b[3]


def test_bytes_are_written_beside_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save returns while its files are not written, and what is trained meanwhile does not reach them."""
    import threading

    model = Decoder(SMALL)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gate, write, threads = threading.Event(), storage.save_file, []

    def held(*args: Any) -> None:
        threads.append(threading.current_thread())
        assert gate.wait(30)
        write(*args)

    monkeypatch.setattr(storage, "save_file", held)
    saver = checkpoint.Saver(tmp_path, keep=1)
    saver.save(2, model, [], {})
    assert checkpoint.saved_steps(tmp_path) == [] and not saver.failed
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    gate.set()
    saver.wait()
    saver.close()
    assert threads and all(thread is not threading.main_thread() for thread in threads)
    assert all(torch.equal(t, before[name[6:]]) for name, t in weights(tmp_path / "step-2").items())
