"""Training: one function that reads from top to bottom, on one process or on many.

batch = f(seed, step), and nothing random happens in a step but dropout, whose generator is part of a checkpoint. So a
run resumed from a checkpoint repeats the uninterrupted one bit for bit on a CPU. Ranks see rows of the same batch. What
they must agree on (losses, norms, signals) they agree on in the step, so that all of them take the same way through
this file.

What can be left out of a run is a hook (hooks.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...devices import pick_device, subnormals_as_zero
from ...ops.available import read_backend
from ...output import launched
from ...parsing import finite_row
from ...progress import Unwatched
from ...schemes import advance
from ...settings import to_dict
from .. import checkpoint
from ..config import TrainConfig
from ..distributed import parallel
from ..distributed.ranks import World, join_world, lost_peers_in_one_line, rank_device
from ..resolve import check_memory, resolve
from ..runs import environment
from ..runs.folder import VOLATILE, RunFolder
from ..runs.loggers import Logger, Loggers, Start, find_loggers, tracked_id
from ..runs.provenance import Provenance
from .averaging import Averaging
from .branch import LONGER, find_extension, find_shared_prefix
from .guard import Diverged
from .hooks import Hook, ProgressReport, Row
from .optim import rate_share
from .resume import Say, resume, rewind, save_state
from .signals import stop_signals, stop_unheard
from .state import TrainState, build_state, fetch_batch
from .summary import describe, summarise
from .text import load_text
from .trace import TraceHook
from .weight_norms import WeightNorms

SAVE_DUE, STOP, SAVE_FAILED = 1, 2, 3
"""What a rank may ask of all ranks after a step: a checkpoint is overdue; it got a signal; its last save has failed."""
LONGEST_UNSAVED = 600
"""Seconds between checkpoints, where `checkpoint.every` would take longer."""
LOG_EVERY = {"cpu": 1, "cuda": 10}
"""Steps between readings of the loss: to read it is to wait for a GPU."""


class Interrupted(Exception):
    """Ctrl-C or a termination signal; everything is saved."""


def train(
    config: TrainConfig, say: Say = print, loggers: Sequence[Logger] = (), progress: Unwatched | None = None
) -> dict[str, Any]:
    """Run, resume or extend one run in config.out and return its summary; under torchrun, this rank's part of it.
    `loggers` get its numbers besides those of --log.to, `progress` how far it is, both on the first rank.

    Raises GeonormError for bad input, Diverged for a loss that is not finite (summary written, last good checkpoint
    kept) and Interrupted after a signal (all saved): on every rank alike."""
    read_backend("auto")  # $GEONORM_BACKEND, before anything is written
    device = rank_device(pick_device(config.runtime.device))
    torch.set_num_threads(config.runtime.threads)
    with join_world(device) as world, lost_peers_in_one_line(world), subnormals_as_zero(device), ExitStack() as stack:
        return train_on_rank(config, world, device, say, loggers, progress or Unwatched(tell=False), stack)


def train_on_rank(
    config: TrainConfig,
    world: World,
    device: torch.device,
    say: Say,
    loggers: Sequence[Logger],
    progress: Unwatched,
    stack: ExitStack,
) -> dict[str, Any]:
    """The whole of `train`, in its order, on one rank of a world. stack: closes what is opened here."""
    stop_times: list[float] = []  # of signals to stop
    # a line that nobody can hear any more (a closed pipe) is a signal to stop
    say = stop_unheard(say, stop_times) if world.first else lambda line: None

    # Settings, text, model: all that can be refused is refused before anything is written.
    if device.type == "cpu":
        check_memory(config.shape(config.scheme))
    resolved = resolve(config, world)
    c = resolved.config
    text = world.on_rank_zero_first(lambda: load_text(config))
    prefix = find_shared_prefix(c)  # another run with the same first steps, which need not be trained again
    state = build_state(resolved, text, device, world)
    model, parallel_model, guard = state.model, state.parallel_model, state.guard
    libraries = find_loggers(c) if world.first else {}
    provenance = Provenance.of(config, text.sha256, text.fingerprint, [config.scheme])
    extension = world.on_all_ranks(lambda: find_extension(config))

    # The folder of the run, which the first rank writes.
    may_differ = LONGER if extension else VOLATILE
    unwritten = RunFolder(Path(config.out), writes=False)  # for the other ranks
    run = world.on_all_ranks(
        lambda: stack.enter_context(RunFolder.open(config, may_differ)) if world.first else unwritten
    )
    world.on_all_ranks(lambda: provenance.check(run.path))
    world.on_all_ranks(lambda: provenance.check(prefix.folder.path) if prefix else None)
    world.on_all_ranks(lambda: extension.begin(run) if extension and world.first else None)
    summary = run.summary()
    earlier = world.share(summary.row() if summary else {"status": "new"})
    if earlier["status"] == "finished":
        say(f"{run.path} is already finished")
        return earlier
    if earlier["status"] == "diverged":
        diagnosis = earlier.get("diagnosis")
        raise Diverged(f"{run.path} has diverged and would again: {diagnosis}; choose another --out for it")

    # Where the run begins.
    for line in describe(c, resolved.shape, model.parameter_count(), device):
        say(line)
    if departures := resolved.departures:
        say(f"own recipe of {c.scheme}: {', '.join(f'{key} {value:g}' for key, value in departures.items())}")
    averaging = Averaging(model, c)
    if resume(state, [averaging], run, prefix, say):
        say(f"resuming {run.path} at step {state.step} of {c.steps}")
    elif state.initial:
        say(state.initial.line)
    run.truncate(state.step)
    versions = environment.collect(device, c.runtime.threads)
    if state.initial and state.step == 0:
        versions["init_from"] = state.initial.record
    if run.writes:
        if changed := provenance.record(run.path, state.step, versions):
            say(changed)
        text.save(run.path)

    hooks = build_hooks(state, run, averaging, ProgressReport(state, run.path.name, say, progress))
    trackers = world.on_all_ranks(lambda: open_loggers(state, run, libraries, loggers, say))
    # behind it wsd cools down: its checkpoint is kept, since a longer run begins there
    branch_step = c.optim.stable_end(c.steps) if c.optim.schedule == "wsd" else None
    saver = checkpoint.Saver(run.checkpoints, c.checkpoint.keep, world, branch_step)
    log_every = LOG_EVERY[device.type]
    pending: list[Row] = []  # rows since the losses were last read
    with stop_signals(launched(), stop_times), closing(saver), trackers:
        try:
            timer = saved_at = time.monotonic()
            # something to rewind to
            if state.step == 0 and "rewind" in (c.guard.nan, c.guard.spike):
                save_state(state, hooks, saver, run)
            while state.step < c.steps:
                step, last = state.step + 1, state.step + 1 == c.steps
                evaluating = last or step % resolved.evaluate_every == 0
                saving = last or step % resolved.save_every == 0 or step == branch_step
                reading = evaluating or saving or step % log_every == 0

                # Forward and backward, one micro-batch after the other.
                ids, targets = fetch_batch(state, step)
                size = len(ids) // c.runtime.accumulate
                losses = []
                for start in range(0, len(ids), size):
                    part = slice(start, start + size)
                    with parallel_model.micro_batch(last=start + size == len(ids)):
                        with parallel.precision(c.runtime, device):
                            loss = parallel_model.loss(ids[part], targets[part])
                        (loss / c.runtime.accumulate).backward()
                    losses.append(loss.detach())
                for hook in hooks:
                    hook.after_backward(state, evaluating)
                grad_norm = parallel_model.clip(c.optim.clip if c.optim.clip > 0 else inf)
                lr = c.lr * rate_share(c.optim, step, c.steps)
                tokens = step * c.batch_size * resolved.shape.context
                loss = world.mean(torch.stack(losses).mean())
                row: Row = {"step": step, "tokens": tokens, "loss": loss, "lr": lr, "grad_norm": grad_norm}

                # The anomaly guard sees a bad gradient before it reaches the weights.
                anomaly = guard.before_step(pending, row) if reading or guard.every_step else None
                if anomaly and anomaly.action == "skip":
                    guard.record(anomaly)
                    row["skipped"] = anomaly.what
                    say(f"{anomaly}: its batch is skipped")
                elif anomaly:
                    rewind(state, anomaly, hooks, run, prefix, saver, say)
                    pending.clear()
                    timer = time.monotonic()
                    continue

                # The step of the optimizers, and the constraints of the scheme, which hold a skipped step too.
                for optimizer in state.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = lr * group["lr_multiplier"]
                    if not anomaly:
                        optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                model.constrain()
                advance(model)  # counts the step for schemes that change over training
                state.step = step
                pending.append(row)
                for hook in hooks:
                    hook.after_step(state, row)

                # What the clock or a signal asks of any rank, all ranks do; the highest request wins.
                overdue = time.monotonic() - saved_at > LONGEST_UNSAVED
                request = world.highest(
                    SAVE_FAILED if saver.failed else STOP if stop_times else SAVE_DUE if overdue else 0
                )
                if not (reading or request):
                    continue

                # Measure and log.
                rows = read_pending(pending)
                state.seconds = add_times(rows, state.seconds, time.monotonic() - timer)
                if evaluating:
                    with parallel.precision(c.runtime, device):
                        rows[-1] |= state.validation.measure(model, last)
                        for hook in hooks:
                            hook.on_evaluation(state, rows[-1])
                    parallel_model.reshard()  # under FSDP an evaluation leaves weights gathered
                    rows[-1] = finite_row(rows[-1])
                run.append(run.metrics, rows)
                trackers.log(rows)  # before the guard looks at them: a tracker shows what a run diverged by
                if anomaly := guard.after_step(rows):
                    rewind(state, anomaly, hooks, run, prefix, saver, say)
                    timer = time.monotonic()
                    continue
                for hook in hooks:
                    hook.on_log(state, rows)

                # Save, and stop where a signal asked for it.
                if saving or request:
                    save_state(state, hooks, saver, run)
                    saved_at = time.monotonic()
                if last or request > SAVE_DUE:
                    saver.wait()
                if request > SAVE_DUE and not last:
                    # without times of its own the signal was another rank's
                    stopped_within = time.monotonic() - min(stop_times, default=timer)
                    write_summary(state, run, "interrupted", stopped_within=stopped_within)
                    raise Interrupted(f"stopped at step {step} of {c.steps}; saved in {run.path}")
                timer = time.monotonic()
        except Diverged as diagnosis:
            rows = read_pending(pending)
            run.append(run.metrics, rows)
            trackers.log(rows)
            write_summary(state, run, "diverged", diagnosis=str(diagnosis))
            raise
    return write_summary(state, run, "finished")


def build_hooks(state: TrainState, run: RunFolder, *always: Hook) -> list[Hook]:
    """What the run does besides training."""
    tracing = [TraceHook(run)] if state.config.evaluation.trace_tokens else []
    return [WeightNorms(), *tracing, *always]


def open_loggers(
    state: TrainState, run: RunFolder, libraries: Mapping[str, Any], more: Sequence[Logger], say: Say
) -> Loggers:
    """On the first rank: loggers that know all settings, the model's with what the preset says."""
    loggers, c = Loggers(), state.config
    if state.world.first:
        shape = to_dict(state.resolved.shape)
        settings = {**to_dict(c), "model": shape, "parameters": state.model.parameter_count()}
        loggers.start(libraries, more, Start(run.path, settings, state.step, tracked_id(run) if c.log.to else ""), say)
    return loggers


def read_pending(pending: list[Row]) -> list[Row]:
    """Empty the list of pending rows and return them with floats for tensors; on a GPU this waits for their steps."""
    rows = [{key: v.item() if isinstance(v, Tensor) else v for key, v in row.items()} for row in pending]
    pending.clear()
    return [finite_row(row) for row in rows]


def add_times(rows: Sequence[Row], seconds: float, elapsed: float) -> float:
    """Spread the time that some steps took evenly over their rows, and return the seconds of training so far."""
    each = elapsed / len(rows)
    for row in rows:
        seconds += each
        row["tokens_per_second"] = row["tokens"] / row["step"] / max(1e-9, each)
        row["seconds"] = seconds
    return seconds


def write_summary(state: TrainState, run: RunFolder, status: str, **more: Any) -> dict[str, Any]:
    """Write summary.json and return its content, on every rank."""
    c = state.config
    about = {
        "status": status,
        "scheme": c.scheme,
        "seed": c.seed,
        "steps": state.step,
        "parameters": state.model.parameter_count(),
        "matmul_parameters": state.model.matmul_parameter_count(),
        "lr": c.lr,
        "wall_seconds": time.monotonic() - state.started,
        "world_size": state.world.size,
        "parallel": state.resolved.layout,
        "phase": c.phase,
        "rates": c.optim.multipliers or None,
        "own_recipe": state.resolved.departures,
        "paper_recipe": state.resolved.scheme.recipe(),
        "events": state.guard.events,
        "diagnosis": None,
        **more,
    }
    return state.world.share(summarise(run, about, state.device).row())
