"""`geonorm bench train`: a whole training step, scheme beside scheme, in turns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from ..errors import GeonormError, cause, require
from ..lab.config import Optim, Runtime
from ..lab.distributed import parallel
from ..lab.runs import environment
from ..lab.runs.folder import save_summary
from ..lab.train import optim
from ..models.config import DecoderConfig, preset
from ..models.decoder import Decoder
from ..schemes import parse
from . import show
from .config import TrainBench
from .timing import Clock, ratio, take_turns

WARM_UP = 3
LR = 1e-3


@dataclass
class Program:
    """One model with its optimizer, ready to make steps. `peak`: bytes that a step takes on a GPU."""

    parameters: int
    step: Callable[[], Tensor]
    peak: int | None


def bench_train(config: TrainBench, say: show.Say = print) -> dict[str, Any]:
    """Builds every program, lets them take turns, prints the table and, with `out`, writes summary.json; returns the
    summary. ConfigError for a bad scheme or preset, GeonormError if a loss is not finite."""
    device = show.begin(config)
    clock = Clock(device, config.threads)
    torch.compiler.reset()  # graphs of earlier models count towards the compiler's limit for one function
    schemes = list(dict.fromkeys(str(parse(scheme)) for scheme in (config.baseline, *config.schemes)))
    shape = preset(config.preset, **({} if config.context is None else {"context": config.context}))
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, shape.vocab_size, (config.batch_size, shape.context + 1), generator=random).to(device)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    count = ids.numel()
    say(
        f"{config.preset}: batch {config.batch_size} x context {shape.context} = {count} tokens, vocabulary "
        f"{shape.vocab_size}, {config.dtype}, {config.threads} threads"
    )
    programs = {
        (scheme, mode): make_program(scheme, mode, shape, config, ids, targets, device)
        for mode in config.modes
        for scheme in schemes
    }
    samplers = {" ".join(place): partial(clock.seconds, p.step) for place, p in programs.items()}
    times = take_turns(samplers, config.pairs)
    rows = []
    for (scheme, mode), program in programs.items():
        seconds = times[f"{scheme} {mode}"]
        rows.append(
            {
                "scheme": scheme,
                "mode": mode,
                "parameters": program.parameters,
                "seconds": median(seconds),
                "tokens_per_second": count / median(seconds),
                "peak_memory_bytes": program.peak,
                "ratio": ratio(seconds, times[f"{schemes[0]} {mode}"]),
            }
        )
    summary = {
        "setting": {
            "preset": config.preset,
            "batch_size": config.batch_size,
            "context": shape.context,
            "vocabulary": shape.vocab_size,
            "dtype": config.dtype,
            "threads": config.threads,
            "pairs": config.pairs,
            "clock": clock.name,
            "baseline": schemes[0],
        },
        "rows": rows,
        "environment": environment.collect(device, config.threads, ""),
    }
    save_summary(config.out, summary)
    show.print_steps(rows, schemes[0], say)
    return summary


def make_program(
    scheme: str, mode: str, shape: DecoderConfig, config: TrainBench, ids: Tensor, targets: Tensor, device: torch.device
) -> Program:
    """A training step of our decoder as `geonorm train` makes it in a long run, past compilation and its first steps.
    GeonormError for one that cannot be compiled here, and for a loss that is not finite."""
    cuda = device.type == "cuda"
    others = torch.cuda.memory_allocated(device) if cuda else 0
    torch.manual_seed(0)
    runtime = Runtime(dtype=config.dtype, threads=config.threads, compile=mode == "compiled")
    with device:
        model = Decoder(replace(shape, scheme=scheme))
    model = parallel.distribute(model, runtime, device)
    loss_of = parallel.trained_loss(model, runtime, device, parallel.FEWEST_STEPS)
    optimizers = optim.build_optimizers(model, Optim(), LR)

    def step() -> Tensor:
        with parallel.precision(runtime, device):
            loss = loss_of(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        model.constrain()
        return loss

    for _ in range(WARM_UP):
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        try:
            loss = step()
        except TorchDynamoException as error:  # no compiler, say
            raise GeonormError(f"{scheme} cannot be compiled here: {cause(error)[:160]}; try --modes eager") from error
    require(torch.isfinite(loss), f"the loss of {scheme}, {mode}, is {loss.item()}: nothing to time", GeonormError)
    peak = torch.cuda.max_memory_allocated(device) - others if cuda else None
    return Program(model.parameter_count(), step, peak)
