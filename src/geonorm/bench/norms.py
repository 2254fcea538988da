"""`geonorm bench norms`: LayerNorm and RMSNorm, each alone, and as a share of a model's training and decoding step.

Programs take turns as in `bench ops`. What a pass must do at least, per element of the input:

              flops forward                           flops backward
    rms       4: square, sum, scale, gain             9: gain, x^ again, its sum (2), x^ term (2), scale, dgain (2)
    layer     6: and the mean, taken out (2)          12: and x^ centred, the plain sum, its term
      + bias  7                                       13: and dbias

x^ is the normalised input. Memory passes are the same for all: x in, y out; x and dy in, dx out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lab.config import Runtime
from ..lab.options import Optim
from ..lab.runs import environment
from ..lab.runs.run import write_json
from ..lab.scale import parallel
from ..lab.train import optim
from ..nn.config import preset
from ..nn.decoder import Decoder
from ..norms import LayerNorm, NormSpec, RMSNorm
from . import show
from .config import NormsBench
from .measure import DTYPES, NORM_TOLERANCE, Candidate, Tensors, Times, measure_tables, prepare_bench
from .timing import Call, Clock, ratio, take_turns
from .train import LR, WARM_UP, finish

EPS = 1e-6
BASE = "LayerNorm, torch"
FLOPS = {"rms": (4, 9), "layer without bias": (6, 12), "layer": (7, 13)}
"""Of an element, forward and backward."""
SUM_TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 0.3}
"""Of gradients of gains and biases by their dtype, in which torch may add up thousands of rows; the table shows it."""
TITLES = {"rms": "RMSNorm", "layer without bias": "LayerNorm without bias", "layer": "LayerNorm"}


@dataclass(frozen=True)
class NormCandidate(Candidate):
    """A norm: `forward` takes the input, gains and, of kind `layer`, biases."""

    kind: str
    source: str

    @property
    def ours(self) -> bool:
        return self.source == "geonorm"

    @staticmethod
    def inputs(rows: int, dim: int, dtype: str, device: torch.device) -> Tensors:
        """Input with a mean of its own in every row, a gradient, and gains and biases away from 1 and 0."""
        random = torch.Generator(device).manual_seed(0)
        x, dy = torch.randn(2, rows, dim, generator=random, device=device).unbind()
        x = x * 10 ** (2 * torch.rand(rows, 1, generator=random, device=device) - 1) + 0.5
        weights = [1 + 0.3 * torch.randn(dim, generator=random, device=device) for _ in range(2)]
        kind = DTYPES[dtype][0]
        return x.to(kind), dy.to(kind), *weights

    def arguments(self, tensors: Tensors) -> dict[str, Tensor]:
        """Input, gains, and biases where the kind has them. torch's functions take weights in the dtype of the input,
        modules keep them in fp32."""
        x, _, weight, bias = tensors
        given = {"x": x, "weight": weight, **({"bias": bias} if self.kind == "layer" else {})}
        kept = {name: tensor if self.ours else tensor.to(x.dtype) for name, tensor in given.items()}
        return {name: tensor.detach().clone().requires_grad_() for name, tensor in kept.items()}

    def gradients(self, tensors: Tensors) -> Tensors:
        return tensors[1:2]

    def truth(self, *taken: Tensor) -> Tensor:
        return textbook(self.kind)(*taken)

    def limits(self, outputs: Sequence[Tensor], taken: Mapping[str, Tensor]) -> dict[str, float]:
        out, dx = NORM_TOLERANCE[taken["x"].dtype]
        sums = SUM_TOLERANCE[taken["weight"].dtype]
        return {"out": out, "dx": dx, "dweight": sums, "dbias": sums}

    def bytes(self, mode: str, tensors: Tensors) -> int:
        return tensors[0].nbytes * {"fwd": 2, "bwd": 3, "both": 5}[mode]

    def flops(self, mode: str, count: int) -> int:
        forward, backward = FLOPS[self.kind]
        return count * {"fwd": forward, "bwd": backward, "both": forward + backward}[mode]

    def kept(self, tensors: Tensors) -> int:
        """Bytes that a forward pass keeps for the backward pass, its input included, gains and biases not."""
        x, *weights = self.arguments(tensors).values()
        seen = {tensor.untyped_storage().data_ptr(): 0 for tensor in weights}

        def note(tensor: Tensor) -> Tensor:
            seen.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            _alive = self.forward(x, *weights)
        return sum(seen.values())

    def columns(self, mode: str, tensors: Tensors, ready: Mapping[str, Candidate], times: Times) -> dict[str, Any]:
        """Its work and memory, and RMSNorm's time over its own."""
        twin = title("rms", self.source, self.compiled)
        return {
            "kind": self.kind, "flops": self.flops(mode, tensors[0].numel()),
            "kept_bytes": None if mode == "fwd" else self.kept(tensors),
            **({"rms_to_this": ratio(times[twin], times[self.name])} if twin in times and twin != self.name else {}),
        }  # fmt: skip


def title(kind: str, source: str, compiled: bool) -> str:
    return f"{TITLES[kind]}, {source}{' compiled' if compiled else ''}"


def of_torch(kind: str) -> Callable[..., Tensor]:
    """torch's function of a kind, as everybody calls it."""
    if kind == "rms":
        return lambda x, weight: F.rms_norm(x, (x.shape[-1],), weight, EPS)
    return lambda x, weight, bias=None: F.layer_norm(x, (x.shape[-1],), weight, bias, EPS)


def of_ours(kind: str, dim: int, device: torch.device) -> Callable[..., Tensor]:
    """The module that models of this library have, its weights replaced by what is given."""
    norm = NormSpec(kind.split()[0], dim, eps=EPS, bias=kind == "layer")().to(device)
    names = [name for name, _ in norm.named_parameters()]
    return lambda x, *weights: torch.func.functional_call(norm, dict(zip(names, weights, strict=True)), (x,))


def textbook(kind: str) -> Callable[..., Tensor]:
    """The definition, operation by operation: the truth when run in fp64."""

    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rest = x if kind == "rms" else x - x.mean(-1, keepdim=True)
        y = rest / (rest.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
        return y if bias is None else y + bias

    return forward


def candidates(dim: int, device: torch.device, modes: Sequence[str]) -> list[NormCandidate]:
    kinds = [(kind, "torch", of_torch(kind)) for kind in ("layer", "layer without bias", "rms")]
    kinds += [(kind, "geonorm", of_ours(kind, dim, device)) for kind in ("layer", "rms")]
    return [
        NormCandidate(name, forward, kind, source, compiled=compiled)
        for compiled in (False, True)
        for kind, source, forward in kinds
        if (name := title(kind, source, compiled)) == BASE or ("compiled" if compiled else "eager") in modes
    ]


def bench_norms(config: NormsBench, say: show.Say = print) -> dict[str, Any]:
    """Checks, times, prints and, with `out`, writes summary.json and figures/; returns the summary. WrongResult before
    anything of a shape is timed if a norm differs from fp64."""
    device, clock = prepare_bench(config)
    summary: dict[str, Any] = {
        "setting": {
            **{name: getattr(config, name) for name in ("preset", "scheme", "batch_size", "threads")},
            "pairs": config.rounds, "device": str(device), "clock": clock.name, "base": BASE,
        },
        "missing": {},
        "environment": environment.collect(device, config.threads, ""),
        "rows": [],
        "steps": [],
    }  # fmt: skip
    measure_tables(
        config, summary, lambda dim: candidates(dim, device, config.modes), config.passes, BASE, show.NORMS, clock,
        device, say,
    )  # fmt: skip
    summary["steps"] = list(shares(config, device, clock))
    say("\n" + show.format_table("step", show.SHARES, summary["steps"], "step"))
    if config.out:
        write_json(Path(config.out) / "summary.json", summary)
        figures = Path(config.out) / "figures"
        for path in show.draw_figures(summary["rows"], figures, summary["environment"], "norms", BASE):
            say(str(path))
    return summary


def shares(config: NormsBench, device: torch.device, clock: Clock) -> Iterator[dict[str, Any]]:
    """Of a training step and of decoding one token: its time, the time of all its norms run by themselves on tensors of
    the same size in the same rounds, and the same step with RMSNorm."""
    programs: dict[tuple[str, str, str, str], Call] = {}
    counts: dict[str, int] = {}
    for norm in ("layer", "rms"):
        for mode in config.modes:
            model, step = make_training(norm, mode, config, device)
            counts[norm] = len(timed_norms(model))
            programs["training", mode, norm, "step"] = step
            rows = config.batch_size * model.config.context
            programs["training", mode, norm, "norms"] = all_norms(model, rows, mode, True, device)
        model = model.eval() if mode == "eager" else make_training(norm, "eager", config, device)[0].eval()
        programs["decoding", "eager", norm, "step"] = partial(decode_one, model, decoding_state(model, device))
        programs["decoding", "eager", norm, "norms"] = all_norms(model, 1, "eager", False, device)
    names = {"\n".join(key): key for key in programs}
    for call in programs.values():
        for _ in range(WARM_UP):
            call()
    repeats = {name: 1 if key[0] == "training" and key[3] == "step" else 20 for name, key in names.items()}
    samplers = {name: partial(clock.elapsed, programs[key], repeats[name]) for name, key in names.items()}
    times = {names[name]: taken for name, taken in take_turns(samplers, config.rounds).items()}
    for (kind, way, norm, what), taken in times.items():
        if what == "step":
            yield {
                "step": kind, "mode": way, "norm": norm, "norms": counts[norm], "seconds": median(taken),
                "norm_seconds": median(times[kind, way, norm, "norms"]),
                "share": ratio(times[kind, way, norm, "norms"], taken),
                **({"rms_to_this": ratio(times[kind, way, "rms", "step"], taken)} if norm == "layer" else {}),
            }  # fmt: skip


def timed_norms(model: Decoder) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, (LayerNorm, RMSNorm))]


def make_training(norm: str, mode: str, config: NormsBench, device: torch.device) -> tuple[Decoder, Call]:
    """A model, and its training step as `geonorm train` makes it, on random tokens."""
    torch.manual_seed(0)
    runtime = Runtime(compile=mode == "compiled")
    with device:
        model = Decoder(preset(config.preset, scheme=config.scheme, norm=norm))
    model = parallel.distribute(model, runtime, device)
    optimizers = optim.build_optimizers(model, Optim(), LR)
    shape = (config.batch_size, model.config.context)
    ids = torch.randint(model.config.vocab_size, shape, device=device)

    def step() -> None:
        finish(model.loss(ids, ids), model, optimizers)
        model.constrain()

    return model, step


def all_norms(model: Decoder, rows: int, mode: str, backward: bool, device: torch.device) -> Call:
    """Every norm of a model once, on tensors of their own: forward, and backward where asked."""
    found = []
    for norm in timed_norms(model):
        x = torch.randn(rows, model.config.width, device=device, requires_grad=backward)
        run_norm = torch.compile(norm, dynamic=False) if mode == "compiled" else norm
        found.append((run_norm, x, [x, *norm.parameters()], torch.randn_like(x)))

    def run() -> None:
        with torch.set_grad_enabled(backward):
            for call, x, leaves, dy in found:
                out = call(x)
                if backward:
                    torch.autograd.grad(out, leaves, dy)

    return run


def decoding_state(model: Decoder, device: torch.device) -> tuple[Tensor, Any]:
    """A token, and the cache of half a context before it."""
    half = max(1, model.config.context // 2)
    cache = model.new_cache(half + 1)
    with torch.no_grad():
        model(torch.zeros(1, half, dtype=torch.long, device=device), cache)
    return torch.zeros(1, 1, dtype=torch.long, device=device), cache


@torch.no_grad()
def decode_one(model: Decoder, state: tuple[Tensor, Any]) -> None:
    """One more token; the cache is set back, so that each call does the same."""
    token, cache = state
    model(token, cache)
    for layer in cache:
        layer.length -= 1
