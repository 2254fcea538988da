"""A plan of a run, without running it: size, operations, memory of a rank, time of its operations.

The model is built on the meta device; what its passes keep is counted on tensors without storage (footprint.py); the
rest is arithmetic that is written out here. Nothing is written, and no data is read.

Memory of a rank counts the tensors of a training step: weights, gradients, optimizer state, the mean of weights that
are averaged, what the forward pass keeps, logits, buffers of FSDP. It does not count the CUDA context, NCCL's buffers,
fragmentation, evaluations or Muon's temporaries.

torch's MemTracker under fake tensors gives the same peak on one rank, but does not see FSDP's whole weights (at 8 ranks
it says 6 % less for 125m and 19 % less for 1.3b), and takes 38 s for 1.3b where this takes 1 s.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..devices import MACHINES, machine_here, machine_named
from ..errors import ConfigError
from ..models.config import DecoderConfig
from ..models.decoder import MOST_LOGITS, Decoder
from ..models.init import ROLES
from ..schemes.scales import Scale
from ..schemes.streams import Connection
from ..settings import to_dict
from .config import TrainConfig
from .distributed.parallel import ranks_of_a_copy
from .distributed.ranks import World
from .footprint import Conditions, Piece, footprint
from .resolve import Resolved, resolve

FP32, BF16 = 4, 2
MANY_SEQUENCES = 16
"""Sequences of a pass in which logits and activations outweigh what does not grow with them. With 64 the plan of 1.3B
took twice as long, and at 16 sequences its estimate was below what is really held."""
MFU = 0.4
"""Share of the peak that the model's own operations reach, recomputation not counted."""


def plan(config: TrainConfig, ranks: int = 1, machine: str = "") -> dict[str, Any]:
    """The plan of a run on `ranks` devices of a kind of machine, by default that of the config; sizes in bytes, times
    in seconds. ConfigError for settings that do not fit together."""
    name = machine or config.runtime.device
    place = machine_named(name, config.runtime.threads)
    world = World(size=ranks, local_size=min(ranks, 8))
    open_setup = resolve(config.on_device("cpu" if name == "cpu" else "cuda"), world)
    room = place.memory * 2**30
    setup, memory = choose_passes(open_setup, world, room)
    schedule, runtime, micro = setup.schedule, setup.runtime, setup.micro_batch
    operations, tokens = flops_per_token(memory.model), setup.text.step_tokens
    peak = memory.peak(micro)
    tflops = (place.bf16 if runtime.dtype == "bf16" else place.fp32) or MACHINES["h100"].bf16
    seconds = operations * tokens / (ranks * tflops * 1e12 * MFU)
    accumulate, largest = setup.text.batch_size // (ranks * micro), memory.largest(room)
    return {
        "settings": {**setup.folder.settings, "lr": schedule.lr, "optim": to_dict(schedule.optim)},
        "model": to_dict(setup.shape),
        "fits": peak <= room,
        "change": suggest_change(setup, memory, room),
        "peak_bytes": peak,
        "peak_bytes_recompute": memory.peak(micro, recompute=True),
        "peak_bytes_no_recompute": memory.peak(micro, recompute=False),
        "memory": memory.parts(micro),
        "lr": schedule.lr,
        "micro_batch": micro,
        "accumulate": accumulate,
        "tokens_per_step": tokens,
        "tokens": schedule.steps * tokens,
        "largest_micro_batch": largest,
        "largest_batch": largest * ranks * accumulate,
        "ranks": ranks,
        "parallel": setup.layout,
        "ranks_of_a_copy": memory.shard,
        "parameters": memory.model.parameter_count(),
        "matmul_parameters": memory.model.matmul_parameter_count(),
        "flops_per_token": operations,
        "flops": operations * schedule.steps * tokens,
        "seconds_per_step": seconds,
        "mfu_assumed": MFU,
        "tflops_assumed": tflops,
        "memory_assumed": place.memory,
    }


def fit_to_device(setup: Resolved, world: World, device: torch.device) -> Resolved:
    """Choose the micro-batch of a run, and its layout where that is left open, so that it fits the device of a rank.
    ConfigError, which says what to change, where none fits."""
    shape, rows = setup.shape, setup.text.batch_size // world.size
    room = machine_here(device, world.local_size).memory * 2**30 or inf
    rough = 4 * rows * shape.context * (shape.vocab_size + 40 * shape.layers * shape.width)  # logits, activations
    if device.type == "cpu" and not setup.micro_batch and 4 * rough < room:  # clearly fits: no need to count exactly
        return replace(setup, micro_batch=rows)
    setup, memory = choose_passes(setup, world, room)
    if (peak := memory.peak(setup.micro_batch)) > room:
        raise ConfigError(
            f"a step takes {binary(peak)} of a rank, and there are {binary(int(room))}: "
            f"{suggest_change(setup, memory, room)}"
        )
    return setup


def choose_passes(setup: Resolved, world: World, room: float) -> tuple[Resolved, Memory]:
    """The setup with the largest micro-batch that divides a rank's share of a step and fits into `room` bytes, and its
    memory. ddp is tried before fsdp. Where nothing fits, the last choice that was tried."""
    rows = setup.text.batch_size // world.size
    with torch.device("meta"):
        model = Decoder(setup.shape)
    most = min(setup.micro_batch or rows, rows)

    def choose_size(layout: str, several: bool) -> tuple[int, Memory]:
        memory = Memory(model, setup, ranks_of_a_copy(setup.runtime, world), layout, several)
        limit = most if setup.micro_batch else max(1, min(most, memory.largest(room)))
        return next(size for size in range(limit, 0, -1) if rows % size == 0), memory

    for layout in ("ddp", "fsdp") if (setup.layout, setup.runtime.parallel) == ("ddp", "auto") else (setup.layout,):
        size, memory = choose_size(layout, several=most < rows)
        if size < rows == most:  # gradients that are added to take more than those of one pass
            size, memory = choose_size(layout, several=True)
        if memory.peak(size) <= room:
            break
    return replace(setup, layout=layout, micro_batch=size), memory


def suggest_change(setup: Resolved, memory: Memory, room: float) -> str:
    """What to change in a run that does not fit, or that recomputes without need; an empty string for nothing."""
    recompute = setup.runtime.recompute
    if memory.peak(setup.micro_batch) <= room:
        needless = recompute and memory.peak(setup.micro_batch, recompute=False) <= room
        return "leave out --runtime.recompute" if needless else ""
    if largest := memory.largest(room):
        return f"choose --micro-batch {largest} or fewer"
    if not recompute and memory.peak(1, recompute=True) <= room:
        return "add --runtime.recompute"
    return "share the model among more ranks with --runtime.parallel fsdp, or take a smaller one"


def flops_per_token(model: Decoder) -> int:
    """FLOPs of forward and backward pass: 6 for each parameter of a matrix, those of schemes and norms among them, and
    12 heads head_dim for each key whose score is computed. Not counted: elementwise work, and the mixing of several
    streams."""
    shape = model.config
    # twice the keys whose score a query computes: of causal attention half of the context, else all of it, also in
    # blocks with a window, which is a mask over all
    windows = [shape.window_of(layer) or shape.context for layer in range(shape.layers)]
    keys = sum(1 if shape.causal and window >= shape.context else 2 for window in windows) * shape.context
    tables = looked_up_roles(shape)
    matrices = sum(weight.numel() for role, weight, _, _ in model.weights() if role not in tables)
    matrices += sum(weight.numel() for weight in matrices_without_role(model))
    return 6 * (matrices + keys * shape.heads * shape.head_dim)


def matrices_without_role(model: Decoder) -> list[Tensor]:
    """Matrices that a scheme or a norm owns, which multiply every vector of the stream. Not among them are scales,
    which may be laid out by heads, and mixtures of streams: they multiply no vectors."""
    known = {id(weight) for _, weight, _, _ in model.weights()}
    known |= {id(weight) for part in model.modules() if isinstance(part, Scale) for weight in part.parameters()}
    known |= {id(part.mix) for part in model.modules() if isinstance(part, Connection)}
    return [weight for weight in model.parameters() if weight.dim() == 2 and id(weight) not in known]


def looked_up_roles(shape: DecoderConfig) -> set[str]:
    """Roles of tables that multiply nothing: rows of them are looked up, by token or by position."""
    return {"position", "values"} | (set() if shape.tied else {"embed"})  # a tied embedding multiplies, as the head


def count_looked_up(model: Decoder) -> int:
    """Parameters of the tables that are only looked up."""
    tables = looked_up_roles(model.config)
    return sum(weight.numel() for role, weight, _, _ in model.weights() if role in tables)


class Memory:
    """Bytes that a rank holds in a step, for any number of sequences in a pass."""

    def __init__(self, model: Decoder, setup: Resolved, ranks: int, layout: str, several: bool) -> None:
        """ranks: those that share one copy of the model under fsdp. several: a step has more than one pass."""
        self.model, self.runtime, self.fsdp = model, setup.runtime, layout == "fsdp"
        self.shard = ranks if self.fsdp else 1
        self.adding = layout == "ddp" or (layout == "none" and several)
        half = self.runtime.dtype == "bf16"
        conditions = Conditions(
            torch.bfloat16 if half and self.fsdp else torch.float32,
            (lambda: torch.autocast("cpu", torch.bfloat16)) if half else nullcontext,
            self.adding,
        )
        # bytes at any moment are linear in the number of sequences, so the peak of a pass is a maximum of such lines:
        # of that for few sequences, where gradients of weights dominate, and that for many
        self.logits = model.config.context * model.config.vocab_size  # of a sequence
        with FakeTensorMode():
            self.lines = {
                size: [footprint(model, n * size, conditions) for n in (1, 2)] for size in (1, MANY_SEQUENCES)
            }
        count = model.parameter_count()
        orthogonal = sum(w.numel() for role, w, _, _ in model.weights() if not ROLES[role].end)
        momenta = 2 * count - (orthogonal if setup.schedule.optim.name == "muon" else 0)
        self.parameters = FP32 * count // self.shard
        self.optimizer = FP32 * momenta // self.shard
        self.average = self.parameters if setup.schedule.average else 0

    def pieces(self, batch: int, recompute: bool | None = None) -> list[Piece]:
        few, many = (
            [one.at(batch, size, two) for one, two in zip(*both, strict=True)] for size, both in self.lines.items()
        )
        pieces = [
            a._replace(forward=max(a.forward, b.forward), backward=max(a.backward, b.backward))
            for a, b in zip(few, many, strict=True)
        ]
        if (batch or 2) * self.logits > MOST_LOGITS:  # the head makes them in pieces, which is another line
            pieces[-1] = many[-1]
        recompute = self.runtime.recompute if recompute is None else recompute
        return [piece.with_recomputation() for piece in pieces] if recompute else pieces

    def parts(self, batch: int) -> dict[str, int]:
        """Bytes by kind; they need not be there at the same moment, see `peak`. `activations` and `weight_copies` (what
        does not grow with the batch: casts of weights and of RoPE's tables) stay from the forward to the backward pass;
        `loss` is the most that head and cross entropy hold at once, logits and their gradient included."""
        pieces, fixed = self.pieces(batch), self.pieces(0)  # fixed: what does not grow with the batch
        head = pieces[-1]
        return {
            "parameters": self.parameters,
            "gradients": self.parameters,
            "optimizer": self.optimizer,
            "average": self.average,
            "weight_copies": sum(piece.saved for piece in fixed),
            "activations": sum(p.saved - zero.saved for p, zero in zip(pieces[:-1], fixed[:-1], strict=True)),
            "loss": max(head.forward, head.saved + head.backward),
            "gathered": self.gathered_weights(pieces),
            # the fp32 buffer in which FSDP reduces the gradients of one block
            "reducing": FP32 * max(piece.weights for piece in pieces) if self.fsdp else 0,
        }

    def peak(self, batch: int, recompute: bool | None = None) -> int:
        """Most bytes that a step holds at any moment: through the forward pass and back, one piece after the other."""
        pieces = self.pieces(batch, recompute)
        held = self.parameters + self.optimizer + self.average + self.gathered_weights(pieces)
        # gradients that are added to are there all the time; others appear block by block
        held += self.parameters if self.adding else 0
        # autocast keeps its casts of weights to the end of the forward pass, also those that recomputation makes again
        casts = [min(p.saved, BF16 * p.weights) for p in self.pieces(0, recompute=False)]
        top = cached = 0
        for piece, cast, fixed in zip(pieces, casts, self.pieces(0, recompute), strict=True):
            top = max(top, held + cached + piece.forward)
            held += piece.saved
            cached += max(0, cast - fixed.saved)
        for piece in reversed(pieces):
            gradients = FP32 * piece.weights
            top = max(top, held + piece.backward + (gradients if self.fsdp else 0))
            held -= piece.saved
            if not self.adding:
                held += gradients // self.shard
        return top

    def gathered_weights(self, pieces: list[Piece]) -> int:
        """Whole weights that FSDP holds at once: those of a block and of the next, which is fetched ahead."""
        return max(map(sum, pairwise(piece.weights * piece.width for piece in pieces))) if self.fsdp else 0

    def largest(self, room: float) -> int:
        """Most sequences of a pass that fit into so many bytes; 0 if not even one does."""
        return bisect_right(range(1, 2**32), room, key=self.peak)


def table(planned: dict[str, Any]) -> str:
    """A plan as lines for a terminal; memory below one KiB is left out."""
    memory, runtime, seconds = planned["memory"], planned["settings"]["runtime"], planned["seconds_per_step"]
    now, other = ("with", "without") if runtime["recompute"] else ("without", "with")
    peak = {"with": planned["peak_bytes_recompute"], "without": planned["peak_bytes_no_recompute"]}
    layouts = {"none": "one process", "ddp": "DDP", "fsdp": f"FSDP, {planned['ranks_of_a_copy']} to a copy"}
    batch, largest = planned["largest_micro_batch"], planned["largest_batch"]
    shape = planned["model"]
    notes = {
        "parameters": " (fp32: they are the master copies)",
        "average": " (of the weights, evaluation.average)",
        "weight_copies": " (in the dtype of the pass, with tables of RoPE)",
        "activations": f" ({now} recomputation)",
        "loss": " (logits, their gradient, copies in fp32)",
    }
    names = {
        "weight_copies": "copies of weights", "loss": "head and loss", "gathered": "gathered weights",
        "reducing": "reduction buffer",
    }  # fmt: skip
    rows = [
        (
            "model",
            f"{planned['settings']['scheme']}; {shape['layers']} layers, width {shape['width']}, "
            f"{shape['heads']} heads, hidden {shape['hidden']}, vocabulary {shape['vocab_size']}, "
            f"context {shape['context']}",
        ),
        ("parameters", f"{planned['parameters']:,} ({planned['matmul_parameters']:,} in matrices)"),
        (
            "ranks",
            f"{planned['ranks']} ({layouts[planned['parallel']]}); sequences a pass {planned['micro_batch']}, "
            f"passes a step {planned['accumulate']}, learning rate {planned['lr']:g}",
        ),
        ("precision", f"{runtime['dtype']}, {'' if runtime['compile'] else 'not '}compiled"),
        ("tokens", f"{planned['tokens']:,} ({planned['tokens_per_step']:,} a step)"),
        ("FLOPs per token", f"{planned['flops_per_token']:,}"),
        ("FLOPs of the run", f"{planned['flops']:.3g}"),
        ("memory of a rank", ""),
        *((f"  {names.get(key, key)}", binary(n) + notes.get(key, "")) for key, n in memory.items() if n >= 2**10),
        ("  peak of a step", f"{binary(peak[now])}; {binary(peak[other])} {other} recomputation"),
        (
            f"fits {planned['memory_assumed']:g} GiB",
            f"up to {batch} sequences a pass, batch_size {largest}" if largest else "no: not with one sequence",
        ),
        *([("to change", planned["change"])] if planned["change"] else []),
        ("seconds a step", f"{seconds:.3g} of computing"),
        ("tokens a day", f"{86400 * planned['tokens_per_step'] / seconds:.3g} at most"),
        ("days of the run", f"{seconds * planned['settings']['steps'] / 86400:.3g} or more"),
        (
            "assumed",
            f"{planned['tflops_assumed']:g} TFLOP/s in {runtime['dtype']}, MFU {planned['mfu_assumed']:g}",
        ),
    ]
    return "\n".join(f"{name:<22} {text}".rstrip() for name, text in rows)


def binary(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.2f} MiB"
