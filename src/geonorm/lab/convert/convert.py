"""`geonorm convert`: a trained Pre-Norm model becomes one under another scheme.

OUT/way/     the run on its way, by the training loop of `geonorm train`: checkpoints, metrics; gone at the end
OUT/         the result as its own type: a run, or a model folder; summary.json says what the conversion cost
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import CheckpointError, ConfigError
from ...nn.trunk import IGNORED
from ...output import launched
from ...progress import Unwatched
from ...settings import to_dict
from ..runs.run import RunFolder, first_difference, flatten, is_unused, read_object, write_json
from ..scale import parallel
from ..scale.checkpoint import load_newest
from ..scale.world import on_all_ranks
from ..train.loop import Loop, Say, train
from ..train.matrices import HeldNorms
from .config import ConvertConfig
from .origin import BEGUN, Origin, find_origin

APART = ("out", "evaluation", "checkpoint", "runtime")
"""What the run on its way compares by itself."""


class Converting(Loop):
    """The training loop, which begins with another model."""

    def __init__(self, origin: Origin, *rest: Any) -> None:
        self.origin = origin
        super().__init__(*rest)
        origin.loop = self
        if origin.config.distill:
            self.spread.loss = self.distilled_loss

    def build(self, shape: Any) -> Any:
        return self.origin.build(self, shape)

    def header(self) -> list[str]:
        """The scheme of the run on its way is no name that was asked for, and a model folder has no preset."""
        origin, runtime, size = self.origin, self.config.runtime, self.model.parameter_count()
        way = f"{origin.source} to {origin.target}, {origin.config.way}"
        return [f"{way}: {size:,} parameters, {runtime.dtype} on {self.device.type}", *super().header()[1:]]

    def resume(self, run: RunFolder) -> bool:
        if super().resume(run):
            return True
        self.origin.begin(self)
        self.held.squares = HeldNorms(self.model, self.config.optim.hold_norms).squares  # of the weights it begins with
        before, swapped = self.measure(self.origin.original), self.measure(self.model)
        known = {"settings": asked(self.origin.config), "checkpoint": self.origin.checkpoint}
        run.write(BEGUN, {**known, "loss_before": before, "loss_at_start": swapped})
        self.say(f"{self.origin.name}: loss {before:.4f}, at the start of its way {swapped:.4f}")
        return False

    def measure(self, model: Any) -> float:
        with parallel.precision(self.config.runtime, self.device):
            loss: float = self.validation.on_part(model)["val_loss"]
        return loss

    def distilled_loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """(1 - d) cross entropy + d KL(original || model), means over the predicted tokens."""
        share, logits = self.origin.config.distill, self.model(ids).flatten(0, 1).float()
        with torch.no_grad():
            wanted = self.origin.original(ids).flatten(0, 1).float().log_softmax(-1)
        kept = targets.flatten() != IGNORED
        far = F.kl_div(logits.log_softmax(-1)[kept], wanted[kept], reduction="batchmean", log_target=True)
        return (1 - share) * F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED) + share * far


def convert(config: ConvertConfig, say: Say = print, shown: Unwatched | None = None) -> dict[str, Any]:
    """Converts, or goes on with a conversion, and returns the content of OUT/summary.json. Raises as `train` does."""
    if launched():
        raise on_all_ranks(ConfigError("convert runs on one rank: start it without torchrun"))
    out = Path(config.out)
    way, summary = out / "way", read_object(out / "summary.json")
    check_out(config, out, way, summary)
    if "conversion" in summary:
        say(f"{out} is already finished")
        shutil.rmtree(way, ignore_errors=True)
        return summary
    origin = find_origin(config, way)
    ended = train(origin.settings, say, shown=shown, kind=partial(Converting, origin))
    loop = origin.loop
    load_newest(way / "checkpoints", loop.model, loop.optimizers, say)
    begun = read_object(way / BEGUN)
    ended |= {
        "scheme": str(origin.target),
        "conversion": {
            "from": str(Path(origin.name).resolve() if Path(origin.name).exists() else origin.name),
            "source": str(origin.source),
            "checkpoint": begun.get("checkpoint"),
            "settings": asked(config),
            "besides": asked_besides(config),
            "layers": len(loop.model.all_blocks),
            "tokens": ended["tokens"],
            "loss_before": begun.get("loss_before"),
            "loss_at_start": begun.get("loss_at_start"),
            "loss_after": ended.get("val_loss_part", ended["val_loss"]),
        },
    }
    origin.save(loop, way, out)
    # on a gradual way it had those of both schemes
    ended |= {
        "parameters": loop.model.parameter_count(), "matmul_parameters": loop.model.matmul_parameter_count()
    }  # fmt: skip
    write_json(out / "summary.json", ended)
    shutil.rmtree(way)
    return ended


def asked(config: ConvertConfig) -> dict[str, Any]:
    """What makes one conversion another."""
    return {key: value for key, value in to_dict(config).items() if key not in APART}


def asked_besides(config: ConvertConfig) -> dict[str, Any]:
    """What else was asked for, as in evaluations: it makes no other conversion, but belongs to the command."""
    given, usual = (flatten({name: to_dict(c)[name] for name in APART if name != "out"})
                    for c in (config, ConvertConfig(config.model, config.to, config.tokens)))  # fmt: skip
    return {key: value for key, value in given.items() if value != usual[key]}


def check_out(config: ConvertConfig, out: Path, way: Path, summary: dict[str, Any]) -> None:
    """CheckpointError unless the folder is new, empty or holds this conversion, begun or finished."""
    known = summary.get("conversion") or read_object(way / BEGUN)
    if known:
        if differs := first_difference(known.get("settings", {}), asked(config)):
            raise CheckpointError(f"{out} holds a conversion with {differs}; choose another --out")
    elif not way.is_dir() and not is_unused(out):
        raise CheckpointError(f"{out} is not empty and holds no conversion; choose another --out")
