"""A model that is probed, whatever its kind: its inputs, its forward pass under the hooks, its loss and gradients."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError, require
from ..modes import evaluating
from .anatomy import blocks_of
from .capture import Capture
from .observe import Gradients, gradient_norms, length_of

Inputs = Mapping[str, Any]
IDS = ("input_ids", "decoder_input_ids")


class ProbedModel:
    """A Decoder of ours (or a module with `Residual`s in a list called blocks), a Hugging Face model, or any nn.Module.

    Batches are ids (batch, tokens), or the keyword arguments of a forward pass; of a model of ours {"": ids}, with
    "labels" where the loss is of labels. An encoder-decoder reads the first half of ids and goes on with the second.
    sites: as for Capture. It runs in evaluation mode, and is left in the mode that it had.
    """

    def __init__(self, model: nn.Module, *, sites: bool = True) -> None:
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # of a compiled one the model itself
        config = getattr(self.model, "config", None)
        self.config = config if hasattr(config, "model_type") else None  # that of a model of transformers
        self.capture = Capture(self.model, sites=sites)

    @property
    def device(self) -> torch.device:
        """The device of the parameters in memory."""
        return next((p.device for p in self.model.parameters() if not p.is_meta), torch.device("cpu"))

    @property
    def needs_labels(self) -> bool:
        """True for a model of masked tokens or of images, False for one of the next token."""
        if self.config is not None:
            return any(part in type(self.model).__name__ for part in ("MaskedLM", "ImageClassification"))
        return not getattr(getattr(self.model, "config", None), "causal", True)

    def blocks(self) -> list[tuple[str, list[nn.Module]]]:
        """(stack, its blocks) in order."""
        return [(stack.name, blocks_of(self.model, stack, base)) for stack, base in self.capture.stacks]

    def inputs(self, batch: Tensor | Inputs) -> dict[str, Any]:
        """A batch as keyword arguments of a forward pass, on the device of the model. ConfigError for ids that the
        model does not know."""
        first, second = IDS
        if not isinstance(batch, Tensor):
            inputs = {name: v.to(self.device) if isinstance(v, Tensor) else v for name, v in batch.items()}
        elif self.config is None:
            inputs = {"": batch.to(self.device)}
        else:
            inputs = {first: batch.to(self.device)}
            if getattr(self.config, "is_encoder_decoder", False) and batch.dim() == 2:
                inputs[first], inputs[second] = inputs[first].tensor_split([batch.shape[1] // 2], 1)
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None and "labels" in inputs and second not in inputs:
            inputs[second] = shift(labels=inputs["labels"])
        settings = getattr(self.model, "config", None)
        ours = hasattr(settings, "vocab_size") and not hasattr(settings, "image_size")
        for name in ("", *IDS) if ours else IDS:
            if isinstance(inputs.get(name), Tensor):
                inputs[name] = check_ids(self.model, inputs[name])
        return inputs

    def run(self, inputs: Inputs, *, head: bool) -> Any:
        """A forward pass in evaluation mode; of a Hugging Face model without the head where the loss is not needed."""
        inputs = {name: value for name, value in inputs.items() if name != "labels"}  # a base model takes none
        with evaluating(self.model):
            if "" in inputs:
                return self.model(inputs[""])
            model = self.model if head else getattr(self.model, "base_model", self.model)
            caches = {"use_cache": False} if hasattr(self.config, "use_cache") else {}
            return model(**{**caches, **inputs})

    @torch.no_grad()
    def measure(self, batches: Iterable[Tensor | Inputs], progress: Callable[[int], None] | None = None) -> list[int]:
        """Runs every batch once under the hooks; progress(batches so far) after each. Returns the tokens up to the end
        of each batch."""
        tokens = []
        for batch in batches:
            inputs = self.inputs(batch)
            with self.capture.watching(**self.masks(inputs)):
                self.run(inputs, head=False)
            tokens.append(self.capture.tokens())
            if progress is not None:
                progress(len(tokens))
        return tokens

    def masks(self, inputs: Inputs) -> dict[str, Tensor | None]:
        """The mask of tokens, 0 for padding, by stack; under "" for a model without stacks."""
        mask = inputs.get("attention_mask")
        if "decoder_input_ids" in inputs:
            return {"encoder": mask, "decoder": inputs.get("decoder_attention_mask")}
        return {stack.name: mask for stack, _ in self.capture.stacks} or {"": mask}

    def loss(self, batch: Tensor | Inputs) -> Tensor:
        """Mean cross-entropy of `predictions`, in nats. ConfigError for a model that predicts no tokens."""
        return self.losses([batch]).mean()

    def losses(self, batches: Iterable[Tensor | Inputs]) -> Tensor:
        """Cross-entropy of every token of all batches that is predicted, (tokens,). ConfigError where there is none."""
        losses = torch.cat([F.cross_entropy(*self.predictions(batch), reduction="none") for batch in batches])
        require(losses.numel(), "nothing is to be predicted: give longer windows, or labels that are not all -100")
        return losses

    def predictions(self, batch: Tensor | Inputs) -> tuple[Tensor, Tensor]:
        """Logits (tokens, classes) in fp32 or better, and their targets (tokens,).

        Targets are the labels but for -100, as in the model's own loss: for the next token they are ids, shifted here;
        for masked tokens, a decoder after an encoder and models of ours they stand where they are predicted. Without
        labels every next token is one, unless it or the token before it is padding.
        """
        inputs = self.inputs(batch)
        ids = inputs.get("decoder_input_ids", inputs.get("input_ids", inputs.get("")))
        out = self.run(inputs, head=True)
        logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        name, labels = type(self.model).__name__, inputs.get("labels")
        predicts = self.config is None or any(part in name for part in ("CausalLM", "LMHead", "ConditionalGeneration"))
        in_place = self.needs_labels or (labels is not None and ("" in inputs or "decoder_input_ids" in inputs))
        if logits is None or (ids is None and labels is None) or not (in_place or predicts):
            raise ConfigError(f"needs a model that predicts the next token: this one is {name}")
        if in_place and labels is None:
            raise ConfigError(f"needs labels: {name} predicts masked tokens or classes, give them with its inputs")
        targets: Any = ids if labels is None else labels
        if not in_place:
            logits, targets = logits[:, :-1], targets[:, 1:]
        counted = targets != -100
        mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
        if labels is None and mask is not None:
            counted = (mask[:, 1:] * mask[:, :-1]) != 0
        logits = logits[counted]
        return logits if logits.dtype == torch.float64 else logits.float(), targets[counted]

    def gradients(self, batch: Tensor | Inputs) -> Gradients:
        """Norms of the gradient of the mean loss of one batch, by sub-layer (`observe.gradient_norms`). Gradients that
        the parameters hold stay."""
        sites = list(self.capture.records)
        modules = [module for place in sites for chain in place.chains for module in chain]
        weights = list(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))
        require(weights, "gradients of a frozen model: call its requires_grad_(True), or leave out gradients")
        with torch.enable_grad():
            values = torch.autograd.grad(self.loss(batch), weights, allow_unused=True)
        gradients = dict(zip(weights, values, strict=True))
        return gradient_norms(sites, lambda parameters: length_of(gradients.get(p) for p in parameters))


def first_not_finite(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """The first sub-layer of some rows after which the stream is not finite (its length: NaN, infinity or an
    overflow), or the embedding before it; None where there is none."""
    row = next((row for row in rows if row["radius_after"] is None), None)
    if row is None:
        return None
    place = "embedding" if row["radius"] is None else f"layer {row['layer']} {row['kind']}"
    return f"{row['stack']} {place}"


def check_ids(model: Any, ids: Tensor) -> Tensor:
    """Ids as long integers. ConfigError unless they are integers (batch, tokens) that the model knows."""
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.dim() != 2 or not ids.numel():
        raise ConfigError(f"data of ids is (batch, tokens) of integers, not {tuple(ids.shape)} of {str(ids.dtype)[6:]}")
    least, most, rows = int(ids.min()), int(ids.max()), getattr(model.config, "vocab_size", None)
    if least < 0 or (rows is not None and most >= rows):
        known = "ids from 0 on" if rows is None else f"0 to {rows - 1}"
        raise ConfigError(f"data has ids from {least} to {most}, and the model knows {known}")
    return ids.long()
