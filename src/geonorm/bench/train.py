"""`geonorm bench train`: a whole training step, scheme beside scheme, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from ..devices import pick_device
from ..errors import ConfigError, GeonormError, cause
from ..lab.config import Optim, Runtime
from ..lab.distributed import parallel
from ..lab.runs import environment
from ..lab.train import optim
from ..models.config import DecoderConfig, preset
from ..models.decoder import Decoder
from ..schemes import parse
from . import show
from .config import TrainBench
from .timing import Clock, clock_of, ratio, take_turns

WARM_UP = 3
LR = 1e-3


@dataclass
class Program:
    """One model with its optimizer, ready to make steps. `resident`: bytes of it that stay on a GPU between steps."""

    scheme: str
    mode: str
    parameters: int
    step: Callable[[], Tensor]
    resident: int = 0
    peak: int = 0


def bench_train(config: TrainBench, say: show.Say = print) -> dict[str, Any]:
    """Builds every program, lets them take turns, prints the table and, with `out`, writes summary.json; returns the
    summary. ConfigError for a bad scheme or preset, GeonormError if a loss is not finite."""
    device = pick_device(config.device)
    torch.set_num_threads(config.threads)
    show.check_folder(config.out)
    clock = clock_of(device, config.threads)
    torch.compiler.reset()  # graphs of earlier models count towards the compiler's limit for one function
    schemes = [str(parse(scheme)) for scheme in (config.baseline, *config.schemes)]
    if len(set(schemes)) < len(schemes):
        raise ConfigError(f"--schemes names a scheme twice, or {config.baseline}, which is always measured")
    shape = preset(config.preset, **({} if config.context is None else {"context": config.context}))
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, shape.vocab_size, (config.batch_size, shape.context + 1), generator=random).to(device)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    count = ids.numel()
    say(
        f"{config.preset}: batch {config.batch_size} x context {shape.context} = {count} tokens, vocabulary "
        f"{shape.vocab_size}, {config.dtype}, {config.threads} threads"
    )
    makers: list[Callable[[], Program]] = [
        partial(ours, scheme, mode, shape, config, ids, targets, device) for mode in config.modes for scheme in schemes
    ]
    if config.llama:
        makers.append(partial(llama, shape, config, ids, targets, device))
    programs = [warm_up(make, device) for make in makers]
    samplers = {f"{p.scheme} {p.mode}": partial(one_step, p, clock, device) for p in programs}
    times = take_turns(samplers, config.pairs)
    base = schemes[0]
    rows = []
    for program in programs:
        seconds = times[f"{program.scheme} {program.mode}"]
        modes = {str(mode): ratio(seconds, times[f"{base} {mode}"]) for mode in config.modes}
        rows.append(
            {
                "scheme": program.scheme,
                "mode": program.mode,
                "parameters": program.parameters,
                "seconds": median(seconds),
                "tokens_per_second": count / median(seconds),
                "peak_memory_bytes": program.peak or None,
                "ratio": modes.get(program.mode, next(iter(modes.values()))),
                "ratios": modes,
            }
        )
    show.print_steps(rows, base, say)
    summary = {
        "setting": {
            "preset": config.preset,
            "batch_size": config.batch_size,
            "context": shape.context,
            "vocabulary": shape.vocab_size,
            "dtype": config.dtype,
            "threads": config.threads,
            "pairs": config.pairs,
            "clock": "wall time" if device.type == "cuda" else clock.name,
            "baseline": base,
        },
        "rows": rows,
        "environment": environment.collect(device, config.threads, ""),
    }
    show.write_summary(config.out, summary)
    return summary


def ours(
    scheme: str,
    mode: str,
    shape: DecoderConfig,
    config: TrainBench,
    ids: Tensor,
    targets: Tensor,
    device: torch.device,
    steps: int = parallel.PAYS,
) -> Program:
    """A training step of our decoder as `geonorm train` makes it in a run of so many steps."""
    torch.manual_seed(0)
    runtime = Runtime(dtype=config.dtype, threads=config.threads, compile=mode == "compiled")
    with device:
        model = Decoder(replace(shape, scheme=scheme))
    model = parallel.distribute(model, runtime, device)
    loss_of = parallel.loss_of(model, runtime, device, steps)
    optimizers = optim.build_optimizers(model, Optim(), LR)

    def step() -> Tensor:
        with parallel.precision(runtime, device):
            loss = loss_of(ids, targets)
        finish(loss, model, optimizers)
        model.constrain()
        return loss

    return Program(scheme, mode, model.parameter_count(), step)


def llama(shape: DecoderConfig, config: TrainBench, ids: Tensor, targets: Tensor, device: torch.device) -> Program:
    """The same step for transformers' Llama of the same shape, with one AdamW over all parameters. ConfigError for a
    shape that no Llama has."""
    try:
        from ..hf.export import adapt
        from ..hf.layouts import architecture
        from ..hf.stock import to_stock
    except ImportError:
        raise GeonormError("--llama needs transformers: pip install 'geonorm[hf]'") from None
    shape = replace(shape, scheme="pre(entry=embedding)")
    try:
        architecture(shape, "llama")
    except ConfigError as error:
        raise ConfigError(f"--llama is for presets of a Llama's shape: {str(error).partition(': use ')[0]}") from None
    torch.manual_seed(0)
    model = to_stock(adapt(Decoder(shape)), "llama").train().to(device)

    runtime = Runtime(dtype=config.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> Tensor:
        with parallel.precision(runtime, device):
            logits = model(input_ids=ids, use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        finish(loss, model, [optimizer])
        return loss

    return Program("transformers' Llama", "eager", sum(p.numel() for p in model.parameters()), step)


def finish(loss: Tensor, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Backward pass, clipping, the optimizers' step."""
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def warm_up(make: Callable[[], Program], device: torch.device) -> Program:
    """A program past compilation and its first steps. GeonormError for one that cannot be compiled here, and for a
    loss that is not finite."""
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    program = make()
    for _ in range(WARM_UP):
        try:
            loss = program.step()
        except TorchDynamoException as error:  # no compiler, say
            raise GeonormError(f"{program.scheme} cannot be compiled here: {cause(error)[:160]}") from error
    if not torch.isfinite(loss):
        raise GeonormError(f"the loss of {program.scheme}, {program.mode}, is {loss.item()}: nothing to time")
    del loss
    if device.type == "cuda":
        program.resident = torch.cuda.memory_allocated(device) - before
    return program


def one_step(program: Program, clock: Clock, device: torch.device) -> float:
    """Seconds of a step; on a GPU its peak memory, too, without what other programs hold."""
    if device.type != "cuda":
        return clock.elapsed(program.step)
    torch.cuda.reset_peak_memory_stats(device)
    others = torch.cuda.memory_allocated(device) - program.resident
    seconds = clock.elapsed(program.step)
    program.peak = max(program.peak, torch.cuda.max_memory_allocated(device) - others)
    return seconds
