"""Training: an explicit loop that reads from top to bottom.

batch = f(seed, step) and nothing random happens in a step, so that a run resumed from a checkpoint repeats the
uninterrupted one bit for bit on a CPU.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, GeonormError
from ..nn.decoder import Decoder
from ..schemes import parse
from . import checkpoint, environment, optim, parallel, trace
from .config import Recipe, TrainConfig
from .data import TokenData, Tokenizer, load_tokenizer, open_source, prepare
from .data.batches import Batches, validation_batches
from .diagnose import diagnose
from .evaluate import held_out
from .examination import Examination
from .run import Run, finite, read_rows, write_json
from .statistics import spikes

Say = Callable[[str], None]
EVALUATION_BATCH = 4096
"""Tokens of a forward pass in evaluations."""


class Diverged(GeonormError):
    """The loss is not finite; the message is the diagnosis."""


class Interrupted(Exception):
    """Ctrl-C or a termination signal; everything is saved."""


@dataclass
class Text:
    """Training and validation tokens with the tokenizer that made them."""

    tokens: TokenData
    tokenizer: Tokenizer


def load_text(config: Recipe) -> Text:
    """Tokens for a run or comparison; prepares and caches them on first use. DataError for anything unusable, too few
    tokens for one batch or one validation window included."""
    shape = config.decoder("pre")
    cache = Path(config.tokens.cache) if config.tokens.cache else None
    source = open_source(config.data)
    tokenizer = load_tokenizer(config.tokens.tokenizer, source, shape.vocab_size, cache)
    text = Text(prepare(source, tokenizer, cache), tokenizer)
    Batches(text.tokens.train, config.batch_size, shape.context, seed=0)
    next(validation_batches(text.tokens.validation, 1, shape.context))
    return text


def train(config: TrainConfig, say: Say = print) -> dict[str, Any]:
    """Runs or resumes one run in config.out and returns its summary. Raises GeonormError for bad input, Diverged for a
    loss that is not finite (summary written, last good checkpoint kept) and Interrupted after a signal (all saved)."""
    config.decoder(config.scheme)
    device = parallel.pick_device(config.runtime.device)
    torch.set_num_threads(config.runtime.threads)
    loop = Loop(config, load_text(config), device, say)
    with Run.opened(config) as run:
        ended = run.summary() or {"status": "new"}
        if ended["status"] == "finished":
            say(f"{run.path} is already finished")
            return ended
        if ended["status"] == "diverged":
            raise Diverged(
                f"{run.path} has diverged and would again: {ended.get('diagnosis')}; choose another --out for it"
            )
        return loop.run(run)


class Loop:
    """State of one training run."""

    def __init__(self, config: TrainConfig, text: Text, device: torch.device, say: Say) -> None:
        self.config = optim.own_recipe(config)
        self.departures = optim.departures(config)
        self.text, self.device, self.say = text, device, say
        shape = config.decoder(config.scheme)
        self.batches = Batches(text.tokens.train, config.batch_size, shape.context, config.seed)
        rows = max(1, EVALUATION_BATCH // shape.context)
        self.held_out = list(validation_batches(text.tokens.validation, rows, shape.context, config.evaluation.tokens))
        torch.manual_seed(config.seed)
        self.model = parallel.prepare(Decoder(shape), config.runtime, device)
        self.optimizers = optim.build(self.model, self.config.optim, self.config.lr)
        self.writer = event_writer() if config.runtime.tensorboard else None
        self.evaluate_every = config.evaluation.every or max(1, config.steps // 3)
        self.examination = Examination(config, self.model, text.tokenizer) if config.evaluation.tasks else None
        self.save_every = config.checkpoint.every or max(1, config.steps // 5)
        # a GPU is asked for its losses seldom, because asking waits for it
        self.log_every = 1 if device.type == "cpu" else 10
        self.step = 0
        self.seconds = 0.0  # of training, without evaluations and checkpoints
        self.begun = time.monotonic()  # less what earlier processes of the run took
        self.pending: list[dict[str, Any]] = []  # rows since the losses were last read

    def run(self, run: Run) -> dict[str, Any]:
        """From the newest checkpoint to the end."""
        c = self.config
        if self.departures:
            self.say(
                f"own recipe of {c.scheme}: {', '.join(f'{key} {value:g}' for key, value in self.departures.items())}"
            )
        state = checkpoint.load_newest(run.checkpoints, self.model, self.optimizers, self.say)
        if state is not None:
            self.step, self.seconds = state["step"], state["seconds"]
            self.begun -= state["wall_seconds"]
            self.say(f"resuming {run.path} at step {self.step} of {c.steps}")
        run.truncate(self.step)
        write_json(
            run.path / "environment.json", environment.describe(self.device, c.runtime.threads, self.text.tokens.sha256)
        )
        if not (run.path / "tokenizer.json").exists():
            self.text.tokenizer.save(run.path / "tokenizer.json")
        board = self.writer(str(run.path / "tensorboard"), purge_step=self.step + 1) if self.writer else None
        with stop_signals() as stopped, closing(board) if board else nullcontext():
            try:
                self.loop(run, board, stopped)
            except Diverged as diagnosis:
                run.append(run.metrics, self.settled())
                self.finish(run, "diverged", str(diagnosis))
                raise
        return self.finish(run, "finished")

    def loop(self, run: Run, board: Any, stopped: list[int]) -> None:
        c = self.config
        told = started = time.monotonic()
        while self.step < c.steps:
            step, last = self.step + 1, self.step + 1 == c.steps
            evaluating = last or step % self.evaluate_every == 0
            saving = last or step % self.save_every == 0
            asking = self.examination is not None and self.examination.due(step, last)
            reading = evaluating or saving or asking or step % self.log_every == 0
            grad_norms = self.update(evaluating, reading)
            if not (reading or stopped):
                continue
            rows = self.settled()
            self.clock(rows, time.monotonic() - started)
            if evaluating:
                rows[-1].update(self.evaluate(run, grad_norms))
            if asking and self.examination is not None:
                rows[-1].update(self.examination.row())
            run.append(run.metrics, rows)
            self.check(rows)
            if board:
                chart(board, rows)
            if evaluating or time.monotonic() - told > 15:
                self.say(progress_line(rows[-1], c.steps))
                told = time.monotonic()
            if saving or stopped:
                progress = {"seconds": self.seconds, "wall_seconds": time.monotonic() - self.begun, "scheme": c.scheme}
                checkpoint.save(run.checkpoints, step, self.model, self.optimizers, progress, c.checkpoint.keep)
            if stopped and not last:
                self.finish(run, "interrupted")
                raise Interrupted(f"stopped at step {step} of {c.steps}; saved in {run.path}")
            started = time.monotonic()

    def settled(self) -> list[dict[str, Any]]:
        """The rows since the last time, tensors as floats; on a GPU this waits for the steps to end."""
        rows = [{k: finite(v.item() if isinstance(v, Tensor) else v) for k, v in row.items()} for row in self.pending]
        self.pending.clear()
        return rows

    def clock(self, rows: list[dict[str, Any]], elapsed: float) -> None:
        """Spreads the time of the steps since the last reading evenly over their rows."""
        each = elapsed / len(rows)
        for row in rows:
            self.seconds += each
            row["tokens_per_second"] = row["tokens"] / row["step"] / max(1e-9, each)
            row["seconds"] = self.seconds

    def check(self, rows: list[dict[str, Any]]) -> None:
        """Diverged if a number of these steps is not finite: nothing of them may reach a checkpoint."""
        for row in rows:
            for key, what in (("loss", "loss"), ("grad_norm", "gradient norm"), ("val_loss", "validation loss")):
                if row.get(key, 0.0) is None:
                    ids = self.held_out[0][0] if key == "val_loss" else self.batches.at(row["step"] - 1)[0]
                    raise Diverged(self.diagnosis(what, ids, row["step"]))

    def diagnosis(self, what: str, ids: Tensor, step: int) -> str:
        with parallel.precision(self.config.runtime, self.device):
            return diagnose(self.model, ids.to(self.device), step, what)

    def update(self, measure: bool, check: bool) -> dict[str, float]:
        """One optimizer step; returns the gradient norm of every site if asked to measure. With `check`, a loss that is
        not finite is Diverged before it can reach the weights."""
        c = self.config
        ids, targets = self.batches.at(self.step)
        size = c.batch_size // c.runtime.accumulate
        ids, targets = parallel.to_device(ids, self.device), parallel.to_device(targets, self.device)
        total = torch.zeros((), device=self.device)
        for start in range(0, c.batch_size, size):
            rows = slice(start, start + size)
            with parallel.precision(c.runtime, self.device):
                loss = self.model.loss(ids[rows], targets[rows])
            (loss / c.runtime.accumulate).backward()
            total += loss.detach() / c.runtime.accumulate
        norms = trace.branch_grad_norms(self.model) if measure else {}
        limit = c.optim.clip if c.optim.clip > 0 else float("inf")
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        step = self.step + 1
        if check and not (torch.isfinite(total) and torch.isfinite(grad_norm)):
            what = "gradient norm" if torch.isfinite(total) else "loss"
            raise Diverged(self.diagnosis(what, ids, step))
        lr = c.lr * optim.rate(c.optim, step, c.steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.model.constrain()
        self.step = step
        tokens = step * ids.numel()
        self.pending.append({"step": step, "tokens": tokens, "loss": total, "lr": lr, "grad_norm": grad_norm})
        return norms

    def evaluate(self, run: Run, grad_norms: dict[str, float]) -> dict[str, float]:
        c = self.config
        with parallel.precision(c.runtime, self.device):
            result = held_out(self.model, self.held_out, self.text.tokens.token_bytes, self.device)
            if c.evaluation.trace_tokens:
                ids = self.trace_ids()
                found = trace.trace(self.model, ids, self.step, grad_norms)
                run.append(run.trace, found.sites)
                run.append(run.norms, found.norms)
        return {key: finite(result[key]) for key in ("val_loss", "val_bpb")}

    def trace_ids(self) -> Tensor:
        """The first whole sequences of the held-out text, at least one."""
        ids = torch.cat([ids for ids, _ in self.held_out])
        count = max(1, self.config.evaluation.trace_tokens // ids.shape[1])
        return ids[:count].to(self.device)

    def finish(self, run: Run, status: str, diagnosis: str | None = None) -> dict[str, Any]:
        """Writes summary.json and returns its content."""
        c = self.config
        rows = list(read_rows(run.metrics))
        losses = [row["loss"] if row["loss"] is not None else float("nan") for row in rows]
        norms = [row["grad_norm"] if row["grad_norm"] is not None else float("nan") for row in rows]
        speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        evaluated = [row for row in rows if "val_loss" in row]
        tail = losses[-max(1, len(losses) // 10) :]
        summary = {
            "status": status,
            "scheme": c.scheme,
            "seed": c.seed,
            "steps": self.step,
            "tokens": rows[-1]["tokens"] if rows else 0,
            "parameters": self.model.parameter_count(),
            "matmul_parameters": self.model.matmul_parameter_count(),
            "lr": c.lr,
            "train_loss": sum(tail) / len(tail) if tail else None,
            "val_loss": evaluated[-1]["val_loss"] if evaluated else None,
            "val_bpb": evaluated[-1]["val_bpb"] if evaluated else None,
            "spikes": len(spikes(losses)),
            "grad_spikes": len(spikes(norms)),
            "tokens_per_second": median(speeds) if speeds else None,
            "peak_memory_bytes": peak_memory(self.device),
            "wall_seconds": time.monotonic() - self.begun,
            "phase": c.phase,
            "own_recipe": self.departures,
            "paper_recipe": parse(c.scheme).recipe(),
            "diagnosis": diagnosis,
        }
        if self.examination is not None:
            summary["tasks"] = self.examination.last(rows)
        summary = {key: finite(value) for key, value in summary.items()}
        write_json(run.path / "summary.json", summary)
        return summary


def progress_line(row: dict[str, Any], steps: int) -> str:
    parts = [f"step {row['step']}/{steps}", f"loss {row['loss']:.4f}", f"{row['tokens_per_second']:,.0f} tokens/s"]
    if "val_loss" in row:
        parts.insert(2, f"val {row['val_loss']:.4f}")
    return "  ".join(parts)


def peak_memory(device: torch.device) -> int:
    """Bytes at the peak: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def event_writer() -> Any:
    """TensorBoard's class of writers. GeonormError if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise GeonormError(
            "TensorBoard is missing: pip install geonorm[train], or --runtime.tensorboard false"
        ) from None
    return SummaryWriter


def chart(board: Any, rows: list[dict[str, Any]]) -> None:
    """Rows of metrics as TensorBoard scalars."""
    for row in rows:
        for name, value in row.items():
            if name not in ("step", "tokens") and value is not None:
                board.add_scalar(name, value, row["step"])


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that fills when SIGINT or SIGTERM arrives; a second one ends the process at once."""
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)

    try:
        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs us handles signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def load_run(path: Path, device: torch.device) -> tuple[Decoder, TrainConfig, Path]:
    """Model of a run at its newest whole checkpoint, its settings, and its tokenizer file. CheckpointError if none."""
    run = Run(path)
    config = run.config()
    model = Decoder(config.decoder(config.scheme)).to(device)
    if checkpoint.load_newest(run.checkpoints, model, None, lambda line: print(line, file=sys.stderr)) is None:
        raise CheckpointError(f"{path} holds no checkpoint yet; let it train first")
    return model.eval(), config, path / "tokenizer.json"
