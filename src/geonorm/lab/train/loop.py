"""Training: one function that reads from top to bottom, on one process or on many.

batch = f(seed, step), and nothing random happens in a step but dropout, whose generator is part of a checkpoint. So a
run resumed from a checkpoint repeats the uninterrupted one bit for bit on a CPU. Ranks see rows of the same batch. What
they must agree on (losses, norms, signals) they agree on in the step, so that all of them take the same way through
this file.

Parts of a run that it could do without are hooks (hooks.py).
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from ...devices import pick_device, subnormals_as_zero
from ...errors import ConfigError, Interrupted
from ...ops.available import read_backend
from ...output import placed
from ...parsing import finite_row
from ...progress import Unwatched
from ...schemes import advance
from ...settings import to_dict
from .. import checkpoint
from ..config import TrainConfig, phase_of
from ..distributed.ranks import World, join_world, lost_peers_in_one_line, raised_by_all_ranks, rank_device
from ..plan import fit_to_device
from ..resolve import Resolved, resolve
from ..runs import environment
from ..runs.folder import (
    EXTENSION_MAY_DIFFER,
    RESUME_MAY_DIFFER,
    RunFolder,
    first_difference,
    read_summary,
    write_settings,
)
from ..runs.identity import OtherRun, identity_sha256
from ..runs.loggers import Logger, Loggers, Start, find_loggers, tracked_id
from ..runs.provenance import check_made_from, record_part, sources_in
from .averaging import Averaging
from .branch import drop_later_steps, find_extension, find_shared_prefix
from .guard import Diverged
from .hooks import Hook, ProgressReport, Row
from .profile import ProfileHook
from .resume import Say, resume, rewind, save_state
from .signals import stop_signals, stop_unheard
from .stack import StackedModels
from .state import TrainState, build_state, fetch_batch
from .step_times import StepTimes
from .summary import describe, summarise
from .text import load_text
from .trace import TraceHook

SAVE_DUE, STOP, SAVE_FAILED = 1, 2, 3
"""What a rank may ask of all ranks after a step, because a checkpoint is overdue, it got a signal to stop, or its last
save has failed."""
LONGEST_UNSAVED = 600
"""Most seconds between checkpoints, even where `checkpoint.every` has not come yet."""
LOG_EVERY = {"cpu": 1, "cuda": 10}
"""Steps between readings of the loss, because each reading waits for the GPU."""


def train(
    config: TrainConfig,
    say: Say = print,
    loggers: Sequence[Logger] = (),
    progress: Unwatched | None = None,
    profiled: int = 0,
    stack: StackedModels | None = None,
) -> dict[str, Any]:
    """Run, resume or extend one run in config.out and return its summary; under torchrun, this rank's part of it.

    On the first rank the `loggers` and those of --log.to get its numbers, `progress` shows how far it is, and
    `profiled` steps are profiled. stack: the models whose losses are computed together with those of this run.

    Raises GeonormError for bad input, Diverged for a loss that is not finite (summary written, last good checkpoint
    kept) and Interrupted after a signal (all saved): on every rank alike."""
    read_backend("auto")  # $GEONORM_BACKEND, before anything is written
    device = rank_device(pick_device(config.runtime.device))
    threads = torch.get_num_threads()
    torch.set_num_threads(config.runtime.threads)

    def set_up(world: World) -> Resolved:
        return fit_to_device(resolve(config.on_device(device.type), world, device.type == "cpu"), world, device)

    joined = join_world(device, lambda world: load_text(set_up(world).text))
    with joined as world, lost_peers_in_one_line(world), subnormals_as_zero(device), ExitStack() as end:
        end.callback(torch.set_num_threads, threads)
        setup = set_up(world)
        return train_on_rank(
            setup, world, device, say, loggers, progress or Unwatched(tell=False), profiled, stack, end
        )


def train_on_rank(
    setup: Resolved,
    world: World,
    device: torch.device,
    say: Say,
    loggers: Sequence[Logger],
    progress: Unwatched,
    profiled: int,
    stack: StackedModels | None,
    end: ExitStack,
) -> dict[str, Any]:
    """All of `train` on one rank of a world, from top to bottom. end: closes what is opened here."""
    schedule, folder, size = setup.schedule, setup.folder, setup.micro_batch
    stop_times: list[float] = [] if stack is None else stack.stopped  # of signals to stop
    # a line that nobody can read any more (a closed pipe) is a signal to stop
    say = stop_unheard(say, stop_times) if world.first else lambda line: None

    # Text and model: all that can be refused is refused before anything is written.
    text = world.on_all_ranks(lambda: load_text(setup.text))
    # another run with the same first steps, which need not be trained again
    prefix = find_shared_prefix(folder, schedule)
    state = build_state(setup, text, device, world)
    model, parallel_model, guard = state.model, state.parallel_model, state.guard
    if stack is not None:
        parallel_model.loss = partial(stack.loss, model, parallel_model.parameters)
    names = [*["TensorBoard"] * setup.runtime.tensorboard, *setup.log.to]
    libraries = find_loggers(names) if world.first else {}
    check_ranks(world, {**state.identity, "GEONORM_BACKEND": read_backend("auto"), "sequences of a pass": size})
    shared = world.on_all_ranks(lambda: find_extension(folder, schedule))

    # The folder of the run, which the first rank writes.
    may_differ = {*(RESUME_MAY_DIFFER if shared is None else EXTENSION_MAY_DIFFER), *folder.accepted}
    unwritten = RunFolder(folder.path, writes=False)  # for the other ranks
    opened = RunFolder.open(folder.path, folder.settings, folder.resume, may_differ)
    run = world.on_all_ranks(lambda: end.enter_context(opened) if world.first else unwritten)
    for source in [run.path, *([prefix.folder.path] if prefix else [])]:
        world.on_all_ranks(partial(check_made_from, source, state.required))
    summary = read_summary(run.path)
    earlier = world.broadcast(summary.row() if summary else {"status": "new"})
    if earlier["status"] == "diverged" and not folder.accepted:
        raise Diverged(
            f"{run.path} has diverged and would again: {earlier.get('diagnosis')}; choose another --out, or "
            "change a setting by --accept-changed"
        )
    if earlier["status"] == "finished" and shared is None:
        if earlier.get("identity") not in (None, identity_sha256(state.identity)):
            raise OtherRun(f"{run.path} has finished with other settings: put them back, or choose another --out")
        say(f"{run.path} is already finished")
        return earlier

    # Where the run begins.
    averaging = Averaging(model, schedule)
    saved = resume(state, [averaging], run, prefix, say, inf if shared is None else shared)
    world.on_all_ranks(lambda: run.truncate(state.step, (saved or {}).get("rows")))
    if shared is not None and run.writes:
        drop_later_steps(run, shared)
    for line in describe(setup, model.parameter_count(), device):
        say(line)
    if departures := setup.departures:
        say(f"own recipe of {setup.shape.scheme}: {', '.join(f'{key} {value:g}' for key, value in departures.items())}")
    if saved:
        say(f"resuming {run.path} at step {state.step} of {schedule.steps}")
    elif state.initial:
        say(state.initial["line"])
    made_with = saved["identity"] if saved else state.identity
    before = {name: made_with.get(name) for name in folder.accepted if made_with.get(name) != state.identity[name]}
    versions = environment.collect(device, setup.runtime.threads)
    if state.initial and state.step == 0:
        versions["init_from"] = state.initial
    if run.writes:
        sources = sources_in([setup.shape.scheme])
        if changed := record_part(run.path, state.step, state.identity, before, sources, versions):
            say(changed)
        if shared is not None or folder.accepted:  # the stored settings are no longer these
            write_settings(run.path / "config.yaml", folder.settings)
        text.save(run)

    report = ProgressReport(state, run.path.name, say, progress)
    hooks = build_hooks(run, setup.evaluation.trace_tokens > 0, averaging, report)
    if profiled and world.first:
        hooks.append(ProfileHook(run.path, profiled, end.callback))
    trackers = world.on_all_ranks(lambda: open_loggers(setup, state, run, libraries, loggers, say))
    # after the branch step wsd cools down: its checkpoint is kept, since a longer run begins there
    saver = checkpoint.Saver(run.checkpoints, setup.checkpoint.keep, world, schedule.branch_step)
    log_every = LOG_EVERY[device.type]
    pending: list[Row] = []  # rows since the losses were last read
    saving_time: Row = {}  # seconds that the last checkpoint took, for the next row
    times = StepTimes(model, setup.runtime.dtype, device, world.size)
    with stop_signals(placed(), stop_times), closing(saver), trackers:
        try:
            saved_at = time.monotonic()
            # something to rewind to, and to go on from under what is accepted
            if before or (state.step == 0 and setup.guard != "stop"):
                save_state(state, hooks, run, saver)
            times.start()
            while state.step < schedule.steps:
                step, last = state.step + 1, state.step + 1 == schedule.steps
                evaluating, saving = schedule.evaluates(step), schedule.saves(step)
                reading = evaluating or saving or step % log_every == 0

                # Forward and backward, one micro-batch after the other.
                times.mark("")  # the time before this belongs to no part of a step
                ids, targets = fetch_batch(state, step)
                times.mark("batch")
                losses = []
                for start in range(0, len(ids), size):
                    part = slice(start, start + size)
                    with parallel_model.micro_batch(last=start + size == len(ids)):
                        with parallel_model.precision():
                            loss = parallel_model.loss(ids[part], targets[part])
                        (loss / (len(ids) // size)).backward()
                    losses.append(loss.detach())
                times.mark("model")
                for hook in hooks:
                    hook.after_backward(state, evaluating)
                grad_norm = parallel_model.clip(schedule.optim.clip or inf)
                loss, lr = world.mean(torch.stack(losses).mean()), schedule.rate(step)
                tokens = step * setup.text.step_tokens
                row: Row = {"step": step, "tokens": tokens, "loss": loss, "lr": lr, "grad_norm": grad_norm}

                # A gradient that is not finite must be found before it reaches the weights.
                if reading and (anomaly := guard.first_not_finite([*pending, row])):
                    rewind(state, anomaly, hooks, run, prefix, saver, say)
                    pending.clear()
                    times.start()
                    continue

                # The step of the optimizers, and the constraints of the scheme.
                for optimizer in state.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = lr * group["lr_multiplier"]
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                model.constrain()
                advance(model)  # counts the step for schemes that change over training
                times.mark("optimizer")
                state.step = step
                pending.append(row)
                for hook in hooks:
                    hook.after_step(state, row)

                # If the clock or a signal asks something of one rank, all ranks do it; the highest request wins.
                own_request = SAVE_DUE if time.monotonic() - saved_at > LONGEST_UNSAVED else 0
                if stop_times:
                    own_request = STOP
                if saver.failed:
                    own_request = SAVE_FAILED
                request = world.highest(own_request)
                if not (reading or request):
                    continue

                # Measure and log.
                rows = read_pending(pending)
                state.seconds = times.add(rows, state.seconds)
                rows[0] |= saving_time
                saving_time = {}
                if evaluating:
                    begun = time.monotonic()
                    report.before_evaluation(state)
                    with parallel_model.precision():
                        rows[-1] |= state.validation.measure(model, last)
                        for hook in hooks:
                            hook.on_evaluation(state, rows[-1])
                    parallel_model.reshard()  # under FSDP an evaluation leaves weights gathered
                    rows[-1] = finite_row(rows[-1]) | {"evaluation_seconds": time.monotonic() - begun}
                run.append(run.metrics, rows)
                trackers.log(rows)  # before the guard looks at them: trackers show a loss that is not finite
                if anomaly := guard.first_not_finite(rows) or guard.first_spike(rows):
                    rewind(state, anomaly, hooks, run, prefix, saver, say)
                    times.start()
                    continue
                for hook in hooks:
                    hook.on_log(state, rows)

                # Save, and stop where a signal asked for it.
                if saving or request:
                    begun = time.monotonic()
                    save_state(state, hooks, run, saver)
                    saved_at = time.monotonic()
                    saving_time = {"checkpoint_seconds": saved_at - begun}
                if last or request > SAVE_DUE:
                    saver.wait()
                if request > SAVE_DUE and not last:
                    write_summary(setup, state, run, "interrupted")
                    where = f"stopped at step {step} of {schedule.steps}; saved in {run.path}"
                    raise Interrupted(f"{where}; the same command goes on from there")
                times.start()
        except Diverged as diagnosis:
            rows = read_pending(pending)
            run.append(run.metrics, rows)
            trackers.log(rows)
            write_summary(setup, state, run, "diverged", diagnosis=str(diagnosis))
            raise
    return write_summary(setup, state, run, "finished")


def check_ranks(world: World, identity: Mapping[str, Any]) -> None:
    """ConfigError, on every rank, if one was started with other settings than the first."""
    for rank, other in enumerate(identities := world.gather(dict(identity))):
        if differs := first_difference(identities[0], other):
            raise raised_by_all_ranks(ConfigError(f"rank {rank} differs from the first, which has {differs}"))


def build_hooks(run: RunFolder, traced: bool, *always: Hook) -> list[Hook]:
    """The hooks of a run: the trace, if it is wanted, and those that every run has."""
    return [*([TraceHook(run)] if traced else []), *always]


def open_loggers(
    setup: Resolved,
    state: TrainState,
    run: RunFolder,
    libraries: Mapping[str, Any],
    more: Sequence[Logger],
    say: Say,
) -> Loggers:
    """On the first rank: started loggers. They get all settings, with those of the model that the preset decides."""
    loggers = Loggers()
    if state.world.first:
        settings = {**setup.folder.settings, "model": to_dict(setup.shape), "parameters": state.model.parameter_count()}
        name = tracked_id(run) if setup.log.to else ""
        loggers.start(libraries, more, Start(run.path, settings, state.step, name), say)
    return loggers


def read_pending(pending: list[Row]) -> list[Row]:
    """Empty the list of pending rows and return them with floats for tensors; on a GPU this waits for their steps."""
    rows = [{key: v.item() if isinstance(v, Tensor) else v for key, v in row.items()} for row in pending]
    pending.clear()
    return [finite_row(row) for row in rows]


def write_summary(setup: Resolved, state: TrainState, run: RunFolder, status: str, **more: Any) -> dict[str, Any]:
    """Write summary.json and return its content, on every rank."""
    about = {
        "status": status,
        "scheme": setup.shape.scheme,
        "seed": setup.text.seed,
        "steps": state.step,
        "parameters": state.model.parameter_count(),
        "matmul_parameters": state.model.matmul_parameter_count(),
        "lr": setup.schedule.lr,
        "wall_seconds": time.monotonic() - state.started,
        "world_size": state.world.size,
        "parallel": setup.layout,
        "phase": phase_of(setup.text.seed),
        "rates": setup.schedule.optim.multipliers or None,
        "own_recipe": setup.departures,
        "paper_recipe": setup.scheme.recipe(),
        "events": state.guard.events,
        "diagnosis": None,
        "identity": identity_sha256(state.identity),
        **more,
    }
    return state.world.broadcast(state.world.on_all_ranks(lambda: summarise(run, about, state.device)).row())
