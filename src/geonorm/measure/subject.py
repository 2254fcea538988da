"""A model that is probed, whatever its kind: how it is fed, what its loss is, where its blocks are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..modes import evaluating
from . import observe as watch
from .anatomy import Stack, blocks_of
from .capture import Capture, fit_mask, mask_of
from .inputs import FAILURES, IDS, check_ids, read_by
from .streaming import single

Inputs = Mapping[str, Any]


class Subject:
    """model: our Decoder (or what has `Residual`s in a list called blocks), a Hugging Face model, or any nn.Module.

    Batches are ids (batch, tokens), or the keyword arguments of a forward pass; of a model of ours {"": ids}, with
    "labels" what is asked. An encoder-decoder reads the first half of ids and goes on with the second. stacks,
    sites: as for Capture. It runs in evaluation mode, and is left as it was found.
    """

    def __init__(self, model: nn.Module, stacks: Sequence[Stack] | None = None, *, sites: bool = True) -> None:
        self.model = model
        self.config = None if hasattr(model, "residuals") else getattr(model, "config", None)
        self.capture = Capture(model, stacks, sites=sites)

    @property
    def device(self) -> torch.device:
        """Of the parameters that are there."""
        return next((p.device for p in self.model.parameters() if p.device.type != "meta"), torch.device("cpu"))

    @property
    def masked(self) -> bool:
        """Whether it is asked for labels, of masked tokens or of images, and not for the next token."""
        if self.config is not None:
            return any(part in type(self.model).__name__ for part in ("MaskedLM", "ImageClassification"))
        return not getattr(getattr(self.model, "config", None), "causal", True)

    def inputs(self, batch: Tensor | Inputs) -> dict[str, Any]:
        """Keyword arguments of a forward pass. ConfigError for ids that the model does not know."""
        found = self.arguments(batch)
        own = getattr(self.model, "config", None)
        reads_ids = hasattr(own, "vocab_size") and tokens_of_image(own) is None
        check_ids(self.model, found, "data", ("", *IDS) if reads_ids else IDS)
        return found

    def arguments(self, batch: Tensor | Inputs) -> dict[str, Any]:
        """A batch as keyword arguments on the device of the model. Of an encoder-decoder the encoder reads the first
        half of ids, the decoder the second."""
        if isinstance(batch, Tensor):
            batch = batch.to(self.device)
            first, second = IDS
            if getattr(self.config, "is_encoder_decoder", False) and batch.dim() > 1:
                half = batch.shape[1] // 2
                return {first: batch[:, :half], second: batch[:, half:]}
            return {"" if self.config is None else first: batch}
        found = {name: v.to(self.device) if isinstance(v, Tensor) else v for name, v in batch.items()}
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None and "labels" in found and "decoder_input_ids" not in found:
            found["decoder_input_ids"] = shift(labels=found["labels"])
        return found

    def run(self, inputs: Mapping[str, Any], *, head: bool) -> Any:
        """A forward pass in evaluation mode; without the head where that is not needed, which saves logits."""
        inputs = {name: value for name, value in inputs.items() if name != "labels"}  # a base model takes none
        with evaluating(self.model):
            if "" in inputs:
                return self.model(inputs[""])
            model = self.model if head else getattr(self.model, "base_model", self.model)
            caches = {"use_cache": False} if hasattr(self.config, "use_cache") else {}
            return model(**{**caches, **inputs})

    def measure(self, batches: Iterable[Tensor | Inputs], told: Callable[[int], None] | None = None) -> int:
        """Runs every batch once under the hooks; told(tokens so far) after each. Returns the number of tokens."""
        tokens = 0
        for batch in batches:
            inputs = self.inputs(batch)
            try:
                with torch.no_grad(), self.capture.watching(**self.masks(inputs)):
                    self.run(inputs, head=False)
            except FAILURES:
                with torch.no_grad(), read_by(self.model, "the data"):
                    self.run(inputs, head=False)  # fails without us, too: it is the data
                raise
            tokens += self.size(batch) if isinstance(batch, Tensor) else self.count(inputs)
            if told is not None:
                told(tokens)
        return tokens

    def masks(self, inputs: Inputs) -> dict[str, Tensor | None]:
        """By stack the mask of its tokens, 0 for padding, where one is given."""
        mask = inputs.get("attention_mask")
        if "decoder_input_ids" in inputs:
            return {"encoder": mask, "decoder": inputs.get("decoder_attention_mask")}
        return {} if mask is None else {stack.name: mask for stack, _ in self.capture.stacks} or {"": mask}

    def size(self, batch: Tensor | Inputs) -> int:
        """Tokens of ids, of the images that a vision transformer of ours reads, or of keyword arguments."""
        if not isinstance(batch, Tensor):
            return self.count(batch)
        each = tokens_of_image(getattr(self.model, "config", None)) if self.config is None else None
        return batch.numel() if each is None else len(batch) * each

    def count(self, inputs: Inputs) -> int:
        if (each := tokens_of_image(self.config)) is not None and "pixel_values" in inputs:
            return len(inputs["pixel_values"]) * each
        given = [name for name in ("input_ids", "decoder_input_ids", "") if name in inputs]
        return sum(tokens_of(inputs, name) for name in given or [next(iter(inputs))])

    def loss(self, batch: Tensor | Inputs) -> Tensor:
        """Mean cross-entropy of the next token, or of masked ones, in nats. ConfigError for a model without one."""
        losses = self.losses(batch)
        check_predicted(losses.numel())
        return losses.mean()

    def losses(self, batch: Tensor | Inputs) -> Tensor:
        """Cross-entropy of what `predictions` gives, one dimension."""
        return F.cross_entropy(*self.predictions(batch), reduction="none")

    def predictions(self, batch: Tensor | Inputs) -> tuple[Tensor, Tensor]:
        """Logits (tokens, vocabulary) in fp32 or better, and what they are to predict (tokens,): every next token that
        is predicted from a token and is one, without padding on either side. Where labels are given, every one but
        -100, as in the model's own loss: for the next token they are ids, shifted here; for masked tokens, a decoder
        behind an encoder and models of ours they stand where they are predicted. ConfigError without a head."""
        inputs = self.inputs(batch)
        ids = inputs.get("decoder_input_ids", inputs.get("input_ids", inputs.get("")))
        out = self.run(inputs, head=True)
        logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        name = type(self.model).__name__
        predicts = self.config is None or any(part in name for part in ("CausalLM", "LMHead", "ConditionalGeneration"))
        labels = inputs.get("labels")
        asked = labels is not None and ("" in inputs or "decoder_input_ids" in inputs)
        if logits is not None and (self.masked or asked):
            return masked_predictions(logits, labels, name)
        if logits is not None and labels is not None and predicts:
            return masked_predictions(logits[:, :-1], labels[:, 1:], name)
        if logits is None or ids is None or not predicts:
            raise ConfigError(f"needs a model that predicts the next token: this one is {name}")
        mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
        logits = logits[:, :-1].flatten(0, 1)
        targets = ids[:, 1:].flatten()
        if mask is not None:
            chosen = (mask[:, 1:] * mask[:, :-1]).flatten() != 0
            logits, targets = logits[chosen], targets[chosen]
        return logits if logits.dtype == torch.float64 else logits.float(), targets

    def blocks(self) -> list[tuple[str, list[nn.Module]]]:
        """(stack, its blocks) in order."""
        return [(stack.name, blocks_of(self.model, stack, base)) for stack, base in self.capture.stacks]


def given_batches(data: Any) -> list[Tensor | Inputs]:
    """Ids or keyword arguments, one or several of them. ConfigError for anything else."""
    found = [data] if isinstance(data, Tensor | Mapping) or not isinstance(data, Iterable) else list(data)
    for batch in found:
        if not isinstance(batch, Tensor | Mapping):
            raise ConfigError(
                "data is text, a tensor of ids (batch, tokens), keyword arguments of a forward pass, or several of "
                f"these, not {type(batch).__name__}: torch.tensor(...) makes ids of a list of lists"
            )
    return found


def tokens_of(inputs: Inputs, name: str) -> int:
    """Tokens of ids, or of vectors in their place, without padding."""
    tokens, mask = inputs[name], inputs.get(f"{'decoder_' * name.startswith('decoder_')}attention_mask")
    if mask is not None:
        return int(mask.sum())
    return int(tokens[..., 0].numel() if tokens.dim() > 2 else tokens.numel())


def tokens_of_image(config: Any) -> int | None:
    """Tokens of an image for a model of ours or of transformers, a class token in front of square patches where it is
    not of ours; None for one that reads none, or does not say."""
    if hasattr(config, "image_size") and isinstance(context := getattr(config, "context", None), int):
        return context
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    return (size // patch) ** 2 + 1 if isinstance(size, int) and isinstance(patch, int) else None


def masked_predictions(logits: Tensor, labels: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    """Logits at the labels, (batch, tokens) or (batch,) of images, that are not -100, and those labels."""
    if labels is None:
        raise ConfigError(
            f"needs what is to be predicted: {name} predicts masked tokens, give their labels with its ids"
        )
    chosen = labels != -100
    if labels.shape != logits.shape[:-1]:
        raise ConfigError(
            f"labels of shape {tuple(labels.shape)} are not those of {tuple(logits.shape[:-1])} predictions"
        )
    if chosen.any() and not 0 <= int(labels[chosen].min()) <= int(labels[chosen].max()) < logits.shape[-1]:
        raise ConfigError(f"labels are -100, or 0 to {logits.shape[-1] - 1}: others are given")
    found = logits[chosen]
    return found if found.dtype == torch.float64 else found.float(), labels[chosen]


def measure_gradients(subject: Subject, batch: Tensor | Inputs) -> watch.Gradients:
    """Of every site in the order of the trace: norms of the gradient of the mean loss of one batch, in evaluation mode
    (`sites.watch.gradient_norms`). Gradients that the model holds stay."""
    sites = subject.capture.sites
    weights = [p for place in sites for chain in place.chains for m in chain for p in m.parameters() if p.requires_grad]
    weights = list(dict.fromkeys(weights))
    if not weights:
        raise ConfigError("gradients of a frozen model: call its requires_grad_(True), or leave out gradients")
    with torch.enable_grad():
        found = torch.autograd.grad(subject.loss(batch), weights, allow_unused=True)
    gradients = dict(zip(weights, found, strict=True))
    return watch.gradient_norms(sites, lambda parameters: watch.length_of(gradients.get(p) for p in parameters))


@torch.no_grad()
def ablation(
    subject: Subject, batches: Sequence[Tensor | Inputs], told: Callable[[float], None] | None = None
) -> tuple[float, list[dict[str, Any]]]:
    """(loss, rows): for every block, and for runs of 2, 4, ... blocks up to half of them, the loss without them.

    first, last: blocks left out (the stream passes by them unchanged); loss, increase in nats; angle: mean angle
    between the stream before the first and after the last of them in the whole model, in radians; distance: the same
    over pi (arXiv:2403.17887).
    """
    whole = mean_loss(subject, batches)
    rows: list[dict[str, Any]] = []
    for stack, blocks in subject.blocks():
        windows = [
            (start, start + width - 1)
            for width in (2**k for k in range(len(blocks).bit_length()))
            if width == 1 or width <= len(blocks) // 2
            for start in range(len(blocks) - width + 1)
        ]
        turned = ends(subject, stack, batches, windows)
        for done, (start, last) in enumerate(windows):
            with without(blocks[start : last + 1]):
                loss = mean_loss(subject, batches)
            about = {"stack": stack, "first": start, "last": last, "blocks": last - start + 1}
            angle = turned[start, last]
            rows.append(about | {"loss": loss, "increase": loss - whole, "angle": angle, "distance": angle / torch.pi})
            if told is not None:
                told((done + 1) / len(windows))
    return whole, rows


def mean_loss(subject: Subject, batches: Sequence[Tensor | Inputs]) -> float:
    """Over the tokens of all batches, whatever their sizes."""
    losses = torch.cat([subject.losses(batch) for batch in batches])
    check_predicted(losses.numel())
    return losses.double().mean().item()


def check_predicted(count: int) -> None:
    """ConfigError for losses over no token at all."""
    if not count:
        raise ConfigError("nothing is to be predicted: give windows of more tokens, or labels that are not all -100")


@contextmanager
def without(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, the stream passes by these blocks."""
    with ExitStack() as hooks:
        for block in blocks:
            hooks.callback(block.register_forward_hook(pass_by, with_kwargs=True).remove)
        yield


def pass_by(block: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    """In the place of a block: the stream as it came. What else the block returned (T5's position bias) stays."""
    x = watch.stream_past(block, watch.stream_of(args, kwargs))
    return (x, *out[1:]) if isinstance(out, tuple) else x


def ends(
    subject: Subject, stack: str, batches: Sequence[Tensor | Inputs], windows: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Mean angle between the stream before and after each window, over tokens without padding, as measurements see it
    at the sites; streams of one batch are held at a time."""
    seen: list[Tensor] = []
    places = [place for place in subject.capture.sites if place.stack == stack]
    first = {place.site.layer: place for place in reversed(places)}

    def look(place: watch.ModelSite, x: Tensor, _: Any, after: Tensor) -> None:
        if place is first[place.site.layer]:
            seen.append(place.seen(x))
        if place is places[-1]:
            seen.append(place.seen(after))

    totals, count = dict.fromkeys(windows, 0.0), 0
    with watch.watch(subject.model, look, places):
        for batch in batches:
            inputs = subject.inputs(batch)
            subject.run(inputs, head=False)
            mask = fit_mask(mask_of(subject.masks(inputs), stack), seen[0])
            unit = [F.normalize(single(x if mask is None else x[mask]).flatten(0, -2), dim=-1) for x in seen]
            for start, last in windows:
                a, b = unit[start], unit[last + 1]
                totals[start, last] += (2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))).sum().item()
            count += unit[0].shape[0]
            seen.clear()
    return {window: total / count for window, total in totals.items()}
