"""Training: an explicit loop that reads from top to bottom, on one process or many.

batch = f(seed, step) and nothing random happens in a step, so that a run resumed from a checkpoint repeats the
uninterrupted one bit for bit on a CPU. Ranks see rows of the same batch; what they must agree on (losses, norms,
signals) they agree on in the step, so that all of them take the same way through this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...devices import pick_device, subnormals_as_zero
from ...errors import CheckpointError
from ...models.decoder import Decoder
from ...ops.available import read_backend
from ...output import launched
from ...parsing import finite_row
from ...progress import Pace, Unwatched
from ...schemes import advance
from ...settings import to_dict
from .. import checkpoint
from ..config import TrainConfig
from ..distributed import parallel
from ..distributed.ranks import ALONE, World, join_world, lost_peers_in_one_line, own_device
from ..resolve import Resolved, check_memory, resolve
from ..runs import environment
from ..runs.folder import VOLATILE, RunFolder
from ..runs.loggers import Logger, Loggers, Start, find_loggers, tracked_id
from ..runs.provenance import Provenance
from ..runs.summary import describe, loss_text, progress_line, summarise
from . import optim, trace
from .averaging import Average
from .branch import LONGER, find_extension, find_trunk
from .diagnose import diagnose
from .guard import Diverged, Judge, Trouble
from .init_from import load_start
from .signals import stop_signals, stop_unheard
from .text import Text, load_text
from .weight_norms import Turning

Say = Callable[[str], None]
LATE, STOP, FAILED = 1, 2, 3
"""What a rank may say to the others after a step: a checkpoint is due; it got a signal; its last save has failed."""
LONGEST_UNSAVED = 600
"""Seconds between checkpoints, where `checkpoint.every` would take longer."""


class Interrupted(Exception):
    """Ctrl-C or a termination signal; everything is saved."""


def train(
    config: TrainConfig, say: Say = print, loggers: Sequence[Logger] = (), shown: Unwatched | None = None
) -> dict[str, Any]:
    """Runs, resumes or extends one run in config.out and returns its summary; under torchrun, this rank's part of it.
    `loggers` get its numbers besides those of --log.to, `shown` how far it is, on the first.

    Raises GeonormError for bad input, Diverged for a loss that is not finite (summary written, last good checkpoint
    kept) and Interrupted after a signal (all saved): on every rank alike."""
    read_backend("auto")  # $GEONORM_BACKEND, before anything is written
    stopped: list[float] = []
    device = own_device(pick_device(config.runtime.device))
    torch.set_num_threads(config.runtime.threads)
    with join_world(device) as world, lost_peers_in_one_line(world), ExitStack() as opened:
        opened.enter_context(subnormals_as_zero(device))
        say = stop_unheard(say, stopped) if world.first else lambda line: None
        if device.type == "cpu":
            check_memory(config.shape(config.scheme))
        setup = resolve(config, world)
        loop = Loop(setup, world.in_turn(lambda: load_text(config)), device, say, world)
        provenance = Provenance.of(config, loop.text.sha256, loop.text.fingerprint, [config.scheme])
        silent, longer = RunFolder(Path(config.out), writes=False), world.together(lambda: find_extension(config))
        but = LONGER if longer else VOLATILE
        run = world.together(lambda: opened.enter_context(RunFolder.open(config, but)) if world.first else silent)
        world.together(lambda: provenance.check(run.path))
        world.together(lambda: provenance.check(loop.trunk.folder.path) if loop.trunk else None)
        world.together(lambda: longer.begin(run) if longer and world.first else None)
        ended = world.share(run.summary() or {"status": "new"})
        if ended["status"] == "finished":
            say(f"{run.path} is already finished")
            return ended
        if ended["status"] == "diverged":
            raise Diverged(
                f"{run.path} has diverged and would again: {ended.get('diagnosis')}; choose another --out for it"
            )
        return loop.run(run, provenance, stopped, loggers, shown or Unwatched(tell=False))


class Loop:
    """State of one training run on one rank."""

    def __init__(self, setup: Resolved, text: Text, device: torch.device, say: Say, world: World = ALONE) -> None:
        c = setup.config
        self.config, self.setup, shape, kind = c, setup, setup.shape, setup.layout
        self.world = world
        self.trunk = find_trunk(c)
        self.text, self.device, self.say = text, device, say
        self.batches, self.validation = text.batches(c, shape), text.validation(c, shape, device, world)
        torch.manual_seed(c.seed)
        with torch.device(built_on := parallel.build_device(kind)):
            model = Decoder(shape)
        self.model = parallel.distribute(model, c.runtime, device if built_on.type == "cpu" else built_on)
        self.spread = parallel.Spread(self.model, c.runtime, world, device, kind, c.steps)
        self.start = load_start(c, self.model, text.fingerprint, world)
        torch.manual_seed(parallel.own_seed(c.seed, world))
        self.optimizers = parallel.split_groups(optim.build_optimizers(self.model, c.optim, c.lr))
        self.average = Average(self.model, c)
        self.judge = Judge(c.guard)
        self.loggers, self.found = Loggers(), find_loggers(c) if world.first else {}
        self.evaluate_every, self.save_every = setup.evaluate_every, setup.save_every
        # a GPU is asked for its losses seldom, because asking waits for it
        self.log_every = 1 if device.type == "cpu" else 10
        self.step = 0
        self.passed_over = 0  # batches left out when the run was rewound
        self.seconds = 0.0  # of training, without evaluations and checkpoints
        self.begun = time.monotonic()  # less what earlier processes of the run took
        self.pending: list[dict[str, Any]] = []  # rows since the losses were last read

    def run(
        self, run: RunFolder, provenance: Provenance, stopped: list[float], more: Sequence[Logger], shown: Unwatched
    ) -> dict[str, Any]:
        """From the newest checkpoint to the end; `stopped` takes the times of signals to stop."""
        c = self.config
        for line in describe(c, self.setup.shape, self.model.parameter_count(), self.device):
            self.say(line)
        if departures := self.setup.departures:
            self.say(f"own recipe of {c.scheme}: {', '.join(f'{key} {value:g}' for key, value in departures.items())}")
        if self.resume(run):
            self.say(f"resuming {run.path} at step {self.step} of {c.steps}")
        elif self.start:
            self.say(self.start.line)
        run.truncate(self.step)
        versions = environment.collect(self.device, c.runtime.threads)
        if self.start and self.step == 0:
            versions["init_from"] = self.start.record
        if run.writes and (changed := provenance.record(run.path, self.step, versions)):
            self.say(changed)
        if run.writes:
            self.text.save(run.path)
        trunk = c.optim.trunk_end(c.steps) if c.optim.schedule == "wsd" else None
        self.world.together(lambda: self.open_loggers(run, more))
        self.saver = checkpoint.Saver(run.checkpoints, c.checkpoint.keep, self.world, trunk)
        with stop_signals(launched(), stopped), closing(self.saver), self.loggers:
            try:
                self.loop(run, shown, stopped)
            except Diverged as diagnosis:
                run.append(run.metrics, rows := self.read_pending())
                self.loggers.log(rows)
                self.finish(run, "diverged", diagnosis=str(diagnosis))
                raise
        return self.finish(run, "finished")

    def open_loggers(self, run: RunFolder, more: Sequence[Logger]) -> None:
        """On the first rank: they are told all settings, the model's with what the preset says."""
        c = self.config
        if self.world.first:
            settings = {**to_dict(c), "model": to_dict(self.setup.shape), "parameters": self.model.parameter_count()}
            name = tracked_id(run) if c.log.to else ""
            self.loggers.start(self.found, more, Start(run.path, settings, self.step, name), self.say)

    def loop(self, run: RunFolder, shown: Unwatched, stopped: list[float]) -> None:
        c, pace = self.config, Pace(self.step)
        told = started = saved = time.monotonic()
        if self.step == 0 and "rewind" in (c.guard.nan, c.guard.spike):
            self.save(run)
        while self.step < c.steps:
            step, last = self.step + 1, self.step + 1 == c.steps
            evaluating = last or step % self.evaluate_every == 0
            saving = last or step % self.save_every == 0 or step == self.saver.trunk
            reading = evaluating or saving or step % self.log_every == 0
            try:
                gradients = self.update(evaluating, reading)
                late = time.monotonic() - saved > LONGEST_UNSAVED
                own = FAILED if self.saver.failed else STOP if stopped else LATE if late else 0
                signal = (asked := self.world.highest(own)) > LATE
                if not (reading or asked):
                    continue
                rows = self.read_pending()
                self.clock(rows, time.monotonic() - started)
                if evaluating:
                    rows[-1].update(self.evaluate(run, gradients))
                run.append(run.metrics, rows)
                self.loggers.log(rows)  # before they are judged: what a run diverged by is seen
                for row in rows:
                    self.judge.after(row)
            except Trouble as trouble:
                self.recover(run, trouble)
                started = time.monotonic()
                continue
            left, phase = pace.left(step, c.steps), optim.name_phase(c.optim, step, c.steps)
            shown.show(run.path.name, step / c.steps, f"{step}/{c.steps} {phase} {loss_text(rows[-1])}", left)
            if evaluating or (time.monotonic() - told > 15 and not shown.watched):
                self.say(progress_line(rows[-1], c.steps, left))
                told = time.monotonic()
            if saving or asked:
                self.save(run)
                saved = time.monotonic()
            if last or signal:
                self.saver.wait()
            if signal and not last:
                self.finish(run, "interrupted", stopped_within=time.monotonic() - min(stopped, default=started))
                raise Interrupted(f"stopped at step {step} of {c.steps}; saved in {run.path}")
            started = time.monotonic()

    def update(self, measure: bool, check: bool) -> trace.Gradients:
        """One optimizer step; returns the gradient norm of every site if asked to measure. With `check`, a loss or
        gradient that is not finite is Trouble before it can reach the weights."""
        c, step = self.config, self.step + 1
        ids, targets = self.batch(step)
        size = len(ids) // c.runtime.accumulate
        losses = []
        for start in range(0, len(ids), size):
            rows = slice(start, start + size)
            with self.spread.micro_batch(last=start + size == len(ids)):
                with parallel.precision(c.runtime, self.device):
                    loss = self.spread.loss(ids[rows], targets[rows])
                (loss / c.runtime.accumulate).backward()
            losses.append(loss.detach())
        norms = trace.read_gradients(self.model) if measure else {}
        grad_norm = self.spread.clip(c.optim.clip if c.optim.clip > 0 else inf)
        total = self.world.mean(torch.stack(losses).mean())
        lr = c.lr * optim.rate_share(c.optim, step, c.steps)
        tokens = step * c.batch_size * self.setup.shape.context
        row = {"step": step, "tokens": tokens, "loss": total, "lr": lr, "grad_norm": grad_norm}
        try:
            if check or self.judge.every_step:
                self.judge.unread(self.pending)
                self.judge.before(step, total.item(), grad_norm.item())
        except Trouble as trouble:
            if trouble.action != "skip":
                raise
            self.judge.note(trouble)
            row["skipped"] = trouble.what
            self.say(f"{trouble}: its batch is skipped")
        turning = Turning(self.model) if measure else None
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * group["rate"]
            if "skipped" not in row:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.model.constrain()
        advance(self.model)
        self.average.update(step)
        row.update(turning.row() if turning else {})
        self.step = step
        self.pending.append(row)
        return norms

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This rank's rows of the batch of a step, on its device."""
        rows = parallel.own_rows(self.config.batch_size, self.world)
        ids, targets = self.batches.at(step - 1 + self.passed_over, rows)
        return parallel.to_device(ids, self.device), parallel.to_device(targets, self.device)

    def read_pending(self) -> list[dict[str, Any]]:
        """The rows since the last time, tensors as floats; on a GPU this waits for the steps to end."""
        rows = [{k: v.item() if isinstance(v, Tensor) else v for k, v in row.items()} for row in self.pending]
        self.pending.clear()
        return list(map(finite_row, rows))

    def clock(self, rows: list[dict[str, Any]], elapsed: float) -> None:
        """Spreads the time of the steps since the last reading evenly over their rows."""
        each = elapsed / len(rows)
        for row in rows:
            self.seconds += each
            row["tokens_per_second"] = row["tokens"] / row["step"] / max(1e-9, each)
            row["seconds"] = self.seconds

    def evaluate(self, run: RunFolder, gradients: trace.Gradients) -> dict[str, Any]:
        c = self.config
        with parallel.precision(c.runtime, self.device):
            result = self.validation.on_part(self.model)
            if c.evaluation.trace_tokens:
                found = trace.trace(self.model, self.validation.trace_ids(), self.step, gradients)
                run.append(run.trace, found.sites)
                run.append(run.norms, found.norms)
            if self.step == c.steps:
                result |= self.validation.at_the_end(self.model, result["val_loss"], self.average, self.spread.settle)
        self.spread.settle()
        return finite_row(result)

    def save(self, run: RunFolder) -> None:
        """Copies the state; the writing goes on beside the next steps."""
        self.world.together(run.check_there)
        progress = {
            "scheme": self.config.scheme,
            "seconds": self.seconds,
            "wall_seconds": time.monotonic() - self.begun,
            "passed_over": self.passed_over,
            "guard": self.judge.state(),
        }
        self.saver.save(self.step, self.model, self.optimizers, progress, self.average.tensors(self.step))

    def resume(self, run: RunFolder) -> bool:
        """Takes over the newest checkpoint; False if there is none."""
        own = self.model, self.optimizers, self.say, self.world, self.average.tensors()
        state = checkpoint.load_newest(run.checkpoints, *own)
        if state is None and self.trunk:
            state = checkpoint.load_newest(self.trunk.folder.checkpoints, *own, self.trunk.last)
            self.trunk.copy_rows(run, state is not None)
        if state is None:
            return False
        self.step, self.seconds = state["step"], state["seconds"]
        self.begun = time.monotonic() - state["wall_seconds"]
        self.passed_over = state["passed_over"]
        self.judge.restore(state["guard"])
        return True

    def recover(self, run: RunFolder, trouble: Trouble) -> None:
        """Goes back to the last checkpoint and on with the data behind the bad batch; or Diverged."""
        if trouble.action == "stop":
            raise Diverged(self.diagnosis(trouble))
        self.saver.wait()
        self.judge.note(trouble)
        events, passed_over, begun = self.judge.events, self.passed_over, self.begun
        if not self.resume(run):
            raise CheckpointError(f"{trouble}, and there is no checkpoint to go back to")
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.pending.clear()
        run.truncate(self.step)
        self.judge.events, self.begun = events, begun
        self.passed_over = passed_over + trouble.step - self.step
        events[-1]["to"] = self.step
        self.say(f"{trouble}: back to step {self.step}, and on with other data")

    def diagnosis(self, trouble: Trouble) -> str:
        """What can be said about a bad step, the same on every rank: from the one whose rows overflow."""
        ids, _ = self.validation.part[0] if "validation" in trouble.what else self.batch(trouble.step)
        with parallel.precision(self.config.runtime, self.device):
            found = self.world.gather(diagnose(self.model, ids.to(self.device), trouble.step, trouble.what))
        return next((text for text in found if "first site to overflow" in text), found[0])

    def finish(self, run: RunFolder, status: str, **more: Any) -> dict[str, Any]:
        """Writes summary.json and returns its content."""
        c = self.config
        about = {
            "status": status,
            "scheme": c.scheme,
            "seed": c.seed,
            "steps": self.step,
            "parameters": self.model.parameter_count(),
            "matmul_parameters": self.model.matmul_parameter_count(),
            "lr": c.lr,
            "wall_seconds": time.monotonic() - self.begun,
            "world_size": self.world.size,
            "parallel": self.spread.kind,
            "phase": c.phase,
            "own_recipe": self.setup.departures,
            "paper_recipe": self.setup.scheme.recipe(),
            "events": self.judge.events,
            "diagnosis": None,
            **more,
        }
        return self.world.share(summarise(run, about, self.device))
