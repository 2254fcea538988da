"""Training with the tools of others: which parameters decay, and constraints after every step."""

from __future__ import annotations

import warnings
from typing import Any

import transformers
from torch import nn

from ..models.init import decays, parameter_roles
from ..schemes import advance
from .modeling import GeoNormPreTrainedModel


def undecayed(model: nn.Module) -> set[str]:
    """Names of parameters that weight decay is not for: embeddings, norms, biases and what a scheme learns."""
    return {name for name, role in parameter_roles(model).items() if not decays(role)}


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
                    "geonorm.parameter_groups(model, lr, weight_decay)",
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
        left_out = undecayed(model)
        return [name for name, _ in model.named_parameters() if name not in left_out]
