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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, GeonormError
from ..nn.decoder import Decoder
from . import checkpoint, environment, optim, parallel, trace
from .config import TrainConfig
from .data import TokenData, Tokenizer, load_tokenizer, open_source, prepare
from .data.batches import Batches, validation_batches
from .diagnose import diagnose
from .evaluate import held_out
from .run import Run, read_rows, write_json
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


def load_text(config: Any) -> Text:
    """Tokens for a run or comparison; prepares and caches them on first use. DataError for anything unusable."""
    cache = Path(config.tokens.cache) if config.tokens.cache else None
    source = open_source(config.data)
    tokenizer = load_tokenizer(config.tokens.tokenizer, source, config.decoder("pre").vocab_size, cache)
    return Text(prepare(source, tokenizer, cache), tokenizer)


def train(config: TrainConfig, say: Say = print) -> dict[str, Any]:
    """Runs or resumes one run in config.out and returns its summary. Raises GeonormError for bad input, Diverged for a
    loss that is not finite (summary written, last good checkpoint kept) and Interrupted after a signal (all saved)."""
    config.decoder(config.scheme)
    device = parallel.pick_device(config.runtime.device)
    text = load_text(config)
    torch.set_num_threads(config.runtime.threads)
    loop = Loop(config, text, device, say)
    with Run.opened(config) as run:
        finished = run.summary()
        if finished is not None and finished["status"] == "finished":
            say(f"{run.path} is already finished")
            return finished
        return loop.run(run)


class Loop:
    """State of one training run."""

    def __init__(self, config: TrainConfig, text: Text, device: torch.device, say: Say) -> None:
        self.config = optim.own_recipe(config)
        self.text, self.device, self.say = text, device, say
        shape = config.decoder(config.scheme)
        self.batches = Batches(text.tokens.train, config.batch_size, shape.context, config.seed)
        self.held_out = list(
            validation_batches(
                text.tokens.validation, max(1, EVALUATION_BATCH // shape.context), shape.context, config.evaluation.tokens
            )
        )
        torch.manual_seed(config.seed)
        self.model = parallel.prepare(Decoder(shape), config.runtime, device)
        self.optimizers = optim.build(self.model, self.config.optim, self.config.lr)
        self.evaluate_every = config.evaluation.every or max(1, config.steps // 5)
        self.save_every = config.checkpoint.every or max(1, config.steps // 5)
        # a GPU is asked for its losses seldom, because asking waits for it
        self.log_every = 1 if device.type == "cpu" else 10
        self.step, self.seconds = 0, 0.0
        self.pending: list[dict[str, Any]] = []
        self.saved = 0

    def run(self, run: Run) -> dict[str, Any]:
        c = self.config
        begun = time.monotonic()
        state = checkpoint.load_newest(run.checkpoints, self.model, self.optimizers, self.say)
        if state is not None:
            self.step, self.seconds = state["step"], state["seconds"]
            self.saved = self.step
            self.say(f"resuming {run.path} at step {self.step} of {c.steps}")
        run.truncate(self.step)
        wall = state["wall_seconds"] if state else 0.0
        write_json(run.path / "environment.json", environment.describe(self.device, c.runtime.threads, self.text.tokens.sha256))
        if not (run.path / "tokenizer.json").exists():
            self.text.tokenizer.save(run.path / "tokenizer.json")
        board = Board(run.path / "tensorboard", self.step) if c.runtime.tensorboard else None
        told = time.monotonic()

        def save() -> None:
            if self.saved != self.step:
                elapsed = wall + time.monotonic() - begun
                progress = {"seconds": self.seconds, "wall_seconds": elapsed, "scheme": c.scheme}
                checkpoint.save(run.checkpoints, self.step, self.model, self.optimizers, progress, c.checkpoint.keep)
                self.saved = self.step

        with stop_signals() as stopped:
            while self.step < c.steps:
                due = (self.step + 1) % self.evaluate_every == 0 or self.step + 1 == c.steps
                started = time.monotonic()
                try:
                    grad_norms = self.update(due)
                except Diverged:
                    run.append(run.metrics, self.pending)
                    self.finish(run, "diverged", wall + time.monotonic() - begun)
                    raise
                self.seconds += time.monotonic() - started
                row = self.pending[-1]
                row["seconds"] = self.seconds
                row["tokens_per_second"] = row["tokens"] / self.step / max(1e-9, time.monotonic() - started)
                if due:
                    row.update(self.evaluate(run, grad_norms))
                if self.step % self.log_every == 0 or due or stopped:
                    rows = [settle(row) for row in self.pending]
                    run.append(run.metrics, rows)
                    self.pending.clear()
                    if board:
                        board.write(rows)
                    if due or time.monotonic() - told > 15:
                        self.say(progress_line(rows[-1], c.steps))
                        told = time.monotonic()
                if self.step % self.save_every == 0 or self.step == c.steps or stopped:
                    save()
                if stopped and self.step < c.steps:
                    self.finish(run, "interrupted", wall + time.monotonic() - begun)
                    raise Interrupted(f"stopped at step {self.step} of {c.steps}; saved in {run.path}")
        if board:
            board.close()
        return self.finish(run, "finished", wall + time.monotonic() - begun)

    def update(self, measure: bool) -> dict[str, float]:
        """One optimizer step; returns the gradient norm of every site if asked to measure."""
        c = self.config
        ids, targets = self.batches.at(self.step)
        size = c.batch_size // c.runtime.accumulate
        total = torch.zeros((), device=self.device)
        for start in range(0, c.batch_size, size):
            rows = slice(start, start + size)
            with parallel.precision(c.runtime, self.device):
                loss = self.model.loss(ids[rows].to(self.device), targets[rows].to(self.device))
            (loss / c.runtime.accumulate).backward()
            total += loss.detach() / c.runtime.accumulate
        norms = trace.branch_grad_norms(self.model) if measure else {}
        limit = c.optim.clip if c.optim.clip > 0 else float("inf")
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        step = self.step + 1
        if (step % self.log_every == 0 or measure) and not (torch.isfinite(total) and torch.isfinite(grad_norm)):
            raise Diverged(diagnose(self.model, ids.to(self.device), step))
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
                run.append(run.trace, trace.trace(self.model, ids, self.step, grad_norms))
        return {"val_loss": result["val_loss"], "val_bpb": result["val_bpb"]}

    def trace_ids(self) -> Tensor:
        """The first whole sequences of the held-out text, at least one."""
        ids = self.held_out[0][0]
        count = max(1, self.config.evaluation.trace_tokens // ids.shape[1])
        return ids[:count].to(self.device)

    def finish(self, run: Run, status: str, wall: float) -> dict[str, Any]:
        """Writes summary.json."""
        c = self.config
        rows = list(read_rows(run.metrics))
        losses = [row["loss"] if row["loss"] is not None else float("nan") for row in rows]
        norms = [row["grad_norm"] if row["grad_norm"] is not None else float("nan") for row in rows]
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
            "tokens_per_second": median(row["tokens_per_second"] for row in rows) if rows else None,
            "peak_memory_bytes": peak_memory(self.device),
            "wall_seconds": wall,
            "phase": c.phase,
        }
        write_json(run.path / "summary.json", {k: finite(v) for k, v in summary.items()})
        return summary


def settle(row: dict[str, Any]) -> dict[str, Any]:
    """Tensors to floats; what is not finite becomes null."""
    return {k: finite(v.item() if isinstance(v, Tensor) else v) for k, v in row.items()}


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and value - value != 0 else value


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


class Board:
    """TensorBoard event files."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise GeonormError("TensorBoard is missing: pip install geonorm[train], or --runtime.tensorboard false") from None
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for name, value in row.items():
                if name not in ("step", "tokens") and value is not None:
                    self.writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self.writer.close()


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
