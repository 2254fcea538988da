"""Training with transformers' Trainer: which parameters decay, and constraints after every step."""

from typing import Any

import transformers
from torch import nn

from ..models.init import constrain, decays, parameter_roles
from ..schemes import advance
from .modeling import GeoNormPreTrainedModel


class ConstrainCallback(transformers.TrainerCallback):
    """For `transformers.Trainer(callbacks=[ConstrainCallback()])` and trainers built on it: the constraints that
    schemes such as nGPT put on weights hold before the first step and after every one, and schemes that change over
    training (`prores`) hear of every step.

    >>> config = geonorm.hf.GeoNormConfig(hidden_size=16, num_hidden_layers=1, vocab_size=9)
    >>> model = geonorm.hf.GeoNormForCausalLM(config)
    >>> geonorm.hf.ConstrainCallback.constrain(model)  # what it does first, and after every step
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not state.global_step:  # from a checkpoint they hold, and to divide by 1 once more moves the last bit
            self.constrain(more["model"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.constrain(more["model"])
        advance(more["model"])

    @staticmethod
    def constrain(model: nn.Module) -> None:
        for part in model.modules():
            if isinstance(part, GeoNormPreTrainedModel):
                part.constrain()  # a language model's includes that of the model inside it
                return
        constrain(model)


class Trainer(transformers.Trainer):
    """`transformers.Trainer` that decays what `geonorm train` decays and keeps the constraints of schemes.

    >>> from transformers import TrainingArguments
    >>> config = geonorm.hf.GeoNormConfig(hidden_size=16, num_hidden_layers=1, vocab_size=9)
    >>> model = geonorm.hf.GeoNormForCausalLM(config)
    >>> trainer = geonorm.hf.Trainer(model=model, args=TrainingArguments("out", report_to="none", use_cpu=True))
    >>> "model.embed_tokens.weight" in trainer.get_decay_parameter_names(model)  # no weight decay on the embedding
    False
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if not any(isinstance(callback, ConstrainCallback) for callback in self.callback_handler.callbacks):
            self.add_callback(ConstrainCallback())

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        left_out = {name for name, role in parameter_roles(model).items() if not decays(role)}
        return [name for name, _ in model.named_parameters() if name not in left_out]
