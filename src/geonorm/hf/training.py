"""Training with the tools of others: which parameters decay, and constraints after every step."""

from __future__ import annotations

import warnings
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedModel

from ..nn.roles import ROLES
from ..nn.trunk import End
from ..residual import Residual
from ..schemes import advance
from .block import AppliedBlock
from .modeling import GeoNormPreTrainedModel


def undecayed(model: nn.Module) -> set[str]:
    """Names of parameters that weight decay is not for and that transformers' own rule would decay: gains, scales and
    scalars of schemes, which it knows only by the word norm in a name, and embeddings, as the table of roles has it.

    model: one of ours, or a stock model under `apply` (its embeddings are left to transformers), wrapped or not.
    """
    ours = any(isinstance(part, GeoNormPreTrainedModel) for part in model.modules())
    found: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, (Residual, End)):
            found.update(f"{path}.own.{name}" for name, _ in module.own.named_parameters())
        # matrices belong to layers of torch; what a module of this package holds itself is a gain or a scalar
        package = type(module).__module__.partition(".")[0]
        whole = package == __name__.partition(".")[0] and not isinstance(module, (AppliedBlock, PreTrainedModel))
        embedding = ours and isinstance(module, nn.Embedding) and not ROLES[getattr(module, "role", "embed")].decay
        if whole or embedding:
            found.update(f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
    return found


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters that decay: those of `transformers.Trainer` without those of `undecayed`. For our own
    models this is what `geonorm train` decays."""
    theirs: Any = transformers.Trainer.get_decay_parameter_names  # reads nothing of the trainer
    left_out = undecayed(model)
    return [name for name in theirs(None, model) if name not in left_out]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for any optimizer, what decays first: `torch.optim.AdamW(parameter_groups(model, 0.1), lr=1e-3)`."""
    decays = set(decay_parameter_names(model))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in trained if name in decays], "weight_decay": weight_decay},
        {"params": [p for name, p in trained if name not in decays], "weight_decay": 0.0},
    ]


class ConstrainCallback(transformers.TrainerCallback):
    """For `transformers.Trainer(callbacks=[ConstrainCallback()])` and trainers built on it: the constraints that
    schemes such as nGPT put on weights hold before the first step and after every one, and schemes that change over
    training (`prores`) hear of every step.

    Warns where the optimizer decays what should not decay.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        model, optimizer = found["model"], found.get("optimizer")
        if not state.global_step:  # from a checkpoint they hold, and to divide by 1 once more moves the last bit
            self.constrain(model)
        left_out = undecayed(model)
        kept = {id(p): name for name, p in model.named_parameters() if name in left_out}
        for group in getattr(optimizer, "param_groups", ()):
            names = [kept[id(p)] for p in group["params"] if id(p) in kept]
            if names and group.get("weight_decay"):
                warnings.warn(
                    f"weight decay {group['weight_decay']} applies to {len(names)} gains, scalars or embeddings "
                    f"({names[0]}, ...): use geonorm.hf.Trainer, or an optimizer on "
                    "geonorm.hf.parameter_groups(model, weight_decay)",
                    stacklevel=2,
                )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.constrain(found["model"])
        advance(found["model"])

    @staticmethod
    def constrain(model: nn.Module) -> None:
        for part in model.modules():
            if isinstance(part, GeoNormPreTrainedModel):
                part.constrain()  # a language model's includes that of the model inside it
                return


class Trainer(transformers.Trainer):
    """`transformers.Trainer` that decays what `geonorm train` decays and keeps the constraints of schemes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if not any(isinstance(callback, ConstrainCallback) for callback in self.callback_handler.callbacks):
            self.add_callback(ConstrainCallback())

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decay_parameter_names(model)
