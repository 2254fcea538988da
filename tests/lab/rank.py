"""One rank of a small world, run by the `ranks` fixture: its job, arguments and environment are globals."""

import faulthandler
import json
import os
import signal
import sys
import time
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.lab.conftest import spoil
from torch.profiler import ProfilerActivity, profile

from geonorm.cli.main import main
from geonorm.lab import checkpoint
from geonorm.lab.distributed import parallel, ranks as world
from geonorm.lab.resolve import resolve
from geonorm.lab.train import loop as train, state as build
from geonorm.models.decoder import Decoder
from geonorm.settings import from_dict


def run(patch: pytest.MonkeyPatch, dtype: str, *command: str) -> int:
    """geonorm train, for fp64 with a model in double precision; the loss may be made in pieces."""
    if "in pieces" in dtype:
        patch.setattr("geonorm.models.decoder.MOST_LOGITS", 2**12)
    if dtype.startswith("fp64"):
        patch.setattr(build, "Decoder", lambda shape: Decoder(shape).double())
    return main(list(command))


def spoilt(patch: pytest.MonkeyPatch, bad_rank: str, position: str, *command: str) -> int:
    """geonorm train in which one rank's part of one batch of the data gives a loss that is not a number."""
    spoil(patch, lambda state, batch: (state.world.rank, batch) == (int(bad_rank), int(position)))
    return main(list(command))


def stuck(patch: pytest.MonkeyPatch, bad_rank: str, step: str, how: str, where: str, *command: str) -> int:
    """geonorm train in which one rank does not come back from reading a batch, or preparing the data: it sleeps, the
    process is stopped or gone, or it is out of memory."""
    fetch_batch, load = train.fetch_batch, train.load_text
    if how in ("asleep", "stopped"):
        patch.setattr(world, "TIMEOUT", timedelta(seconds=6))

    def wait(config: Any) -> Any:
        if os.environ["RANK"] == bad_rank:
            if how == "dead":
                os._exit(9)
            if how == "torch is out of memory":
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
            time.sleep(600)
        return load(config)

    def stay(state: train.TrainState, at: int) -> Any:
        if state.world.rank == int(bad_rank) and at == int(step):
            if how == "out of memory":
                raise MemoryError("no room")
            savers[-1].wait()  # its part of the save before: this test is not about that
            if how == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        return fetch_batch(state, at)

    savers: list[checkpoint.Saver] = []
    init = checkpoint.Saver.__init__
    patch.setattr(checkpoint.Saver, "__init__", lambda saver, *args: (savers.append(saver), init(saver, *args))[1])
    if where == "preparing the data":
        patch.setattr(train, "load_text", wait)
    else:
        patch.setattr(train, "fetch_batch", stay)
    return main(list(command))


def born(patch: pytest.MonkeyPatch, out: str, settings: dict[str, Any]) -> int:
    """Builds a model for this world; the first rank writes its initial weights, whole, and every rank what it held at
    most while it built, by the records of PyTorch's allocator, in bytes; then takes two steps."""
    config = from_dict(train.TrainConfig, settings)
    text = train.load_text(resolve(config).text)
    torch.use_deterministic_algorithms(True)  # memory that nobody fills is not a number
    with train.join_world(torch.device("cpu")) as ranks:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
            state = train.build_state(resolve(config, ranks), text, torch.device("cpu"), ranks)
        events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
        peak = max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))
        tensors = {name: t.detach() for name, t in state.model.state_dict().items()}
        share = sum(parallel.local_part(t).nbytes for t in tensors.values())
        if out:
            whole = {n: (t.full_tensor() if isinstance(t, parallel.DTensor) else t).clone() for n, t in tensors.items()}
            if ranks.first:
                save_file(whole, f"{out}.safetensors")
        dtypes: list[str] = []
        state.model.blocks[-1].register_forward_hook(lambda _, __, out: dtypes.append(str(out.dtype)))
        losses = []
        for step in (1, 2):
            with state.parallel_model.precision():
                loss = state.parallel_model.loss(*train.fetch_batch(state, step))
            loss.backward()
            losses.append(float(ranks.mean(loss.detach())))
            state.parallel_model.clip(config.optim.clip)
            for optimizer in state.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = 1e-4
                optimizer.step()
                optimizer.zero_grad()
        print(json.dumps({"peak": peak, "share": share, "stream": dtypes[-1], "losses": losses}))
    return 0


def gather(patch: pytest.MonkeyPatch, folder: str, out: str, settings: dict[str, Any]) -> int:
    """Loads a checkpoint into this world; the first rank writes all it then holds, whole, as one process would."""
    config = from_dict(train.TrainConfig, settings)
    device = torch.device("cpu")
    with train.join_world(device) as ranks:
        setup = resolve(config, ranks)
        state = train.build_state(setup, train.load_text(setup.text), device, ranks)
        checkpoint.load_checkpoint(Path(folder), state.model, state.optimizers, ranks)
        tensors, _ = checkpoint.tensors_to_save(state.model, state.optimizers, ranks)
        whole = {name: t.full_tensor() if isinstance(t, parallel.DTensor) else t for name, t in tensors.items()}
        whole = {name: tensor for name, tensor in whole.items() if not name.startswith("random.")}
        cut = sum(isinstance(t, parallel.DTensor) for t in tensors.values())
        if ranks.first:
            save_file(whole, f"{out}.safetensors", {"sharded": str(cut)})
    return 0


JOBS: dict[str, Any] = {"run": run, "spoilt": spoilt, "stuck": stuck, "gather": gather, "born": born}


if __name__ == "__main__":
    torch.set_num_threads(1)
    faulthandler.enable()  # a rank that a library aborts says where it stood
    faulthandler.register(signal.SIGUSR1)  # for whoever looks for the reason of a hang
    job, arguments, environment = (globals()[name] for name in ("job", "arguments", "environment"))
    os.environ.update(environment)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        handle = os.open(environment["OUTPUT"] + name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, stream.fileno())
    sys.exit(JOBS[job](pytest.MonkeyPatch(), *arguments))
