"""The vision transformer for transformers: a thin adapter around the parts of `geonorm.nn`, as in modeling.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from types import new_class
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..errors import ConfigError, UntrustedCode, unknown
from ..nn.config import VisionConfig
from ..nn.roles import linear, undrawn_table
from ..nn.values import Handing
from ..nn.vision import VisionTransformer, embed_patches, pool, turns_of_places
from ..schemes import Scheme, slot_at
from .config import NAMES, THEIRS, UnderScheme, add_fields
from .layers import LAYERS
from .loading import share_weights
from .modeling import GeoNormPreTrainedModel
from .stream import Stream

VISION_NAMES = {
    **{f.name: NAMES.get(f.name, f.name) for f in fields(VisionConfig) if f.name not in ("causal", "classes")},
    "patch": "patch_size",
    "channels": "num_channels",
}
"""Fields of VisionConfig, and what transformers calls them; classes are its num_labels."""

VisionFields: Any = new_class(
    "VisionFields", (PreTrainedConfig,), exec_body=partial(add_fields, kind=VisionConfig, names=VISION_NAMES)
)


class GeoNormVisionConfig(UnderScheme, VisionFields):
    """A vision transformer under a residual scheme: `GeoNormVisionConfig(scheme="pre", image_size=32, num_labels=10)`.

    Fields are those of `geonorm.nn.VisionConfig`, with the documentation there, under the names of transformers.
    `scheme` becomes canonical. ConfigError, one line, for a key, scheme or size that does not exist or does not fit.
    """

    model_type = "geonorm_vision"

    scheme_source: dict[str, Any] | None = None
    geonorm_version: str | None = None
    trained_on_sha256: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for key in kwargs:
            if key not in THEIRS:
                raise ConfigError(unknown("key of GeoNormVisionConfig", key, [f.name for f in fields(self)]))
        with suppress(UntrustedCode):  # text of a folder: whoever builds the model says whether its code may run
            self.rule()
        super().__post_init__(**kwargs)
        self.shape()

    def shape(self) -> VisionConfig:
        """The shape of the network, in our own words."""
        found = {ours: getattr(self, theirs) for ours, theirs in VISION_NAMES.items()}
        return VisionConfig(**found, classes=self.num_labels)

    @classmethod
    def of(cls, shape: VisionConfig, **more: Any) -> GeoNormVisionConfig:
        """The configuration of a vision transformer; `more` are fields that it does not have, such as id2label."""
        found = {theirs: getattr(shape, ours) for ours, theirs in VISION_NAMES.items()}
        return cls(**found, **({} if "id2label" in more else {"num_labels": shape.classes}), **more)


class GeoNormVisionPreTrainedModel(GeoNormPreTrainedModel):
    config: GeoNormVisionConfig
    config_class = GeoNormVisionConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    def constrained(self) -> Iterator[tuple[Scheme, str, Tensor]]:
        yield from self.constrained_in_blocks()
        base: Any = self.base_model
        entry, exit_ = self.ends()
        for part in (base.patch, base.class_token, base.position):
            if part is not None:
                yield entry.scheme, str(part.role), part.weight
        if (head := getattr(self, "head", None)) is not None:
            yield exit_.scheme, "head", head.weight


class GeoNormVisionModel(Stream, GeoNormVisionPreTrainedModel):
    """The stream from patches to exit; returns the last hidden states (batch, tokens, width) in the dtype of the
    weights. The first token is that of the class, where there is one."""

    _input_embed_layer = "patch"

    def __init__(self, config: GeoNormVisionConfig) -> None:
        super().__init__(config)
        c = config.shape()
        self.patch = linear("patch", c.channels * c.patch**2, c.width, c.bias)
        self.class_token = undrawn_table("class_token", 1, c.width) if c.pool == "token" else None
        self.position = undrawn_table("position", c.context, c.width) if c.positions == "learned" else None
        self.add_stream(LAYERS[c.block], c.layers, c.sublayers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(self, pixel_values: Tensor | None = None, **kwargs: Any) -> BaseModelOutput:
        if pixel_values is None:
            raise ValueError("give pixel_values")
        c = self.config.shape()
        turns = turns_of_places(c, pixel_values.device) if c.positions == "rope" else None
        x = embed_patches(pixel_values, c, self.patch, self.class_token, self.position)
        values, dtype = Handing(nn.ModuleDict(), None), self.patch.weight.dtype
        x = self.run_stream(x, values, [None] * c.layers, dtype, positions=turns, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class GeoNormForImageClassification(GeoNormVisionPreTrainedModel):
    """The classes of images: logits (batch, num_labels)."""

    def __init__(self, config: GeoNormVisionConfig) -> None:
        super().__init__(config)
        c = config.shape()
        self.num_labels = c.classes
        self.model = GeoNormVisionModel(config)
        self.head = linear("head", c.width, c.classes, c.bias)
        end = self.model.exit
        self.logits_slot = slot_at(end.scheme, "logits", (c.classes,), c.width, end.site)
        self.post_init()

    @property
    def blocks(self) -> nn.ModuleList:
        return self.model.blocks

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutput:
        """labels: (batch,); the loss is the mean cross entropy in nats."""
        out = self.model(pixel_values, **kwargs)
        logits = self.head(pool(out.last_hidden_state, self.config.shape()))
        logits = logits if self.logits_slot is None else self.logits_slot(logits)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )


def adapt_vision(model: VisionTransformer, **more: Any) -> GeoNormForImageClassification:
    """The vision transformer as a model of transformers, sharing its weights; more: such as id2label."""
    config = GeoNormVisionConfig.of(model.config, dtype=model.patch.weight.dtype, **more)
    return share_weights(GeoNormForImageClassification, config, model, vision_name)


def vision_name(name: str) -> str:
    """The name of a vision transformer's weight in its model of transformers."""
    return name if name.partition(".")[0] in ("head", "logits_slot") else f"model.{name}"
