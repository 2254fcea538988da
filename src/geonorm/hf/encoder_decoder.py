"""The encoder-decoder for transformers: a thin adapter around the parts of `geonorm.nn`, as in modeling.py."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.loss.loss_utils import ForMaskedLMLoss
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..errors import ConfigError
from ..nn.attention import rotary_of
from ..nn.config import DecoderConfig
from ..nn.encoder_decoder import EncoderDecoder, RelativePositions
from ..nn.trunk import IGNORED, End
from ..nn.values import Handing
from ..schemes import Scheme, Site
from .config import GeoNormConfig
from .layers import Attend, GeoNormCrossLayer, GeoNormEncoderLayer
from .loading import share_weights
from .modeling import GeoNormGenerationMixin, GeoNormLanguageModel, GeoNormPreTrainedModel
from .stream import Stream, TokenFront, like


class GeoNormEncoderDecoderConfig(GeoNormConfig):
    """An encoder-decoder under a residual scheme: `GeoNormEncoderDecoderConfig(scheme="geonorm", num_hidden_layers=4)`.

    As `GeoNormConfig`; `encoder_layers` are as many as `num_hidden_layers`, those of the decoder, where nobody says
    otherwise. `decoder_start_token_id` is what the decoder reads first: a run's end token.
    """

    model_type = "geonorm_encoder_decoder"
    base_model_pp_plan: ClassVar[Any] = None
    base_model_fsdp_plan: ClassVar[Any] = None

    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoder_layers is None:  # type: ignore[has-type]
            self.encoder_layers = self.num_hidden_layers
        super().__post_init__(**kwargs)


class GeoNormEncoderDecoderPreTrainedModel(GeoNormPreTrainedModel):
    config: GeoNormEncoderDecoderConfig
    config_class = GeoNormEncoderDecoderConfig
    _no_split_modules = ["GeoNormEncoderLayer", "GeoNormCrossLayer"]  # noqa: RUF012
    _supports_flash_attn = False  # neither has a place for relative positions
    _supports_flex_attn = False
    _can_record_outputs = {}  # noqa: RUF012


class Place(NamedTuple):
    """Where a weight stands, and under which scheme."""

    scheme: Scheme
    site: Site


class GeoNormStack(Stream, GeoNormEncoderDecoderPreTrainedModel):
    """The stream of one stack: entry, blocks, exit."""

    def __init__(self, config: GeoNormEncoderDecoderConfig, layer: type[nn.Module], depth: int, sublayers: int) -> None:
        super().__init__(config)
        c, causal = config.shape(), layer is GeoNormCrossLayer
        self.add_front(c)
        self.relative = RelativePositions(c.heads, causal) if c.positions == "relative" else None
        self.rotary = rotary_of(c)
        self.add_stream(layer, depth, sublayers)

    def add_front(self, shape: DecoderConfig) -> None:
        """Makes what stands before the entry."""

    def run(self, x: Tensor, position_ids: Tensor, mask: Any, dtype: torch.dtype, **kwargs: Any) -> Tensor:
        """The end of the stream, in that dtype, of what `begin` returns. kwargs: for the blocks."""
        kwargs["positions"] = None if self.rotary is None else self.rotary(position_ids.unsqueeze(1))
        return self.run_stream(x, Handing(nn.ModuleDict(), None), [mask] * len(self.blocks), dtype, **kwargs)

    def add_distances(self, mask: Any, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Any:
        """The mask of transformers, which says what is seen, or what is added to scores, with the numbers of relative
        positions in it: (batch or 1, heads, queries, keys)."""
        if self.relative is None:
            return mask
        bias = self.relative(queries, keys).unsqueeze(0).to(dtype)
        if mask is None:
            return bias
        least = torch.finfo(dtype).min  # not -inf: padding may see nothing at all
        return bias.masked_fill(~mask, least) if mask.dtype == torch.bool else (bias + mask).clamp(min=least)


class GeoNormEncoder(TokenFront, GeoNormStack):
    """The stream of the source, with the embedding, which is the answer's too."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": OutputRecorder(GradientCheckpointingLayer, num_hidden_layers_key="encoder_layers"),
        "attentions": OutputRecorder(Attend, index=1),
    }

    def __init__(self, config: GeoNormEncoderDecoderConfig) -> None:
        scheme, depth = config.rule(), config.num_hidden_layers
        sites = Site(0, "entry", depth, 3), Site(depth - 1, "exit", depth, 3)
        self.outer = tuple(Place(scheme.resolve(site), site) for site in sites)
        super().__init__(config, GeoNormEncoderLayer, config.encoder_layers or 1, 2)

    def ends(self) -> Any:
        """Of the decoder: the embedding is drawn for its stream."""
        return self.outer

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        x, position_ids, dtype = self.begin(input_ids, inputs_embeds, position_ids, None)
        mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=like(x, dtype), attention_mask=attention_mask
        )  # fmt: skip
        places = torch.arange(x.shape[1], device=x.device)
        kwargs["is_causal"] = False
        return BaseModelOutput(
            self.run(x, position_ids, self.add_distances(mask, places, places, dtype), dtype, **kwargs)
        )


class GeoNormCrossDecoder(GeoNormStack):
    """The stream of the answer, whose blocks attend to the encoder's output too."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": GradientCheckpointingLayer,
        "attentions": OutputRecorder(Attend, index=1, layer_name="attn"),
        "cross_attentions": OutputRecorder(Attend, index=1, layer_name="cross"),
    }

    def __init__(self, config: GeoNormEncoderDecoderConfig) -> None:
        super().__init__(config, GeoNormCrossLayer, config.num_hidden_layers, 3)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        x: Tensor,
        position_ids: Tensor,
        dtype: torch.dtype,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """x, position_ids, dtype: what the encoder's `begin` returns."""
        fresh = past_key_values is None  # of a cache that begins here transformers would not look for texts in one row
        if use_cache and fresh:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        own = None if past_key_values is None else past_key_values.self_attention_cache
        tokens = x.shape[1]
        past, keys = (0, tokens) if own is None else (own.get_seq_length(), own.get_mask_sizes(tokens, 0)[0])
        mask = create_causal_mask(
            config=self.config, inputs_embeds=like(x, dtype), attention_mask=attention_mask,
            past_key_values=None if fresh else own, position_ids=position_ids,
        )  # fmt: skip
        across = create_bidirectional_mask(
            config=self.config, inputs_embeds=like(x, dtype), attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )  # fmt: skip
        places = torch.arange(keys, device=x.device)
        mask = self.add_distances(mask, torch.arange(tokens, device=x.device) + past, places, dtype)
        kwargs.update(memory=encoder_hidden_states, across=across, past_key_values=past_key_values)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.run(x, position_ids, mask, dtype, **kwargs), past_key_values=past_key_values
        )


class GeoNormEncoderDecoderModel(GeoNormEncoderDecoderPreTrainedModel):
    """Both stacks: last hidden states of the answer, and those of the source."""

    def __init__(self, config: GeoNormEncoderDecoderConfig) -> None:
        super().__init__(config)
        self.encoder, self.decoder = GeoNormEncoder(config), GeoNormCrossDecoder(config)
        self.scaling = config.shape().scaling
        self.post_init()

    def ends(self) -> tuple[End, End]:
        return self.decoder.entry, self.decoder.exit

    @property
    def position(self) -> nn.Module | None:
        """The table of positions, which both stacks read."""
        found: nn.Module | None = self.encoder.position
        return found

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Any = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """encoder_outputs: what `get_encoder()` returned for the source, in the place of its ids."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                inputs_embeds=inputs_embeds, **kwargs,
            )  # fmt: skip
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = EncoderDecoderCache(past_key_values, DynamicCache(config=self.config))
        given = decoder_input_ids, decoder_inputs_embeds, decoder_position_ids
        begun = self.encoder.begin(*given, past_key_values, "decoder_")
        out = self.decoder(
            *begun, attention_mask=decoder_attention_mask, encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask, past_key_values=past_key_values, use_cache=use_cache, **kwargs,
        )  # fmt: skip
        return Seq2SeqModelOutput(
            last_hidden_state=out.last_hidden_state,
            past_key_values=out.past_key_values,
            decoder_hidden_states=out.hidden_states,
            decoder_attentions=out.attentions,
            cross_attentions=out.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class GeoNormForConditionalGeneration(
    GeoNormLanguageModel, GeoNormEncoderDecoderPreTrainedModel, GeoNormGenerationMixin
):
    """The language model that reads a source and writes an answer to it."""

    config: GeoNormEncoderDecoderConfig
    config_class = GeoNormEncoderDecoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}  # noqa: RUF012
    _pp_plan = {}  # noqa: RUF012
    _fsdp_plan = {}  # noqa: RUF012
    body = GeoNormEncoderDecoderModel
    is_causal = True

    def ends(self) -> tuple[End, End]:
        found: tuple[End, End] = self.model.ends()
        return found

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to predict the labels (batch, tokens): its first token, then all of them but the last;
        padding where there is nothing to predict. ConfigError where no first token is known."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None:
            raise ConfigError("labels need decoder_start_token_id in the configuration: what the decoder reads first")
        shifted = torch.cat((torch.full_like(labels[:, :1], start), labels[:, :-1]), 1)
        return shifted.masked_fill(shifted == IGNORED, start if pad is None else pad)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Any = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """labels: ids of the answer, (batch, tokens), -100 where there is nothing to predict; the decoder reads them
        behind its first token where it is given nothing else. The loss is the mean cross entropy in nats."""
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        out = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask, encoder_outputs=encoder_outputs,
            past_key_values=past_key_values, inputs_embeds=inputs_embeds, decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache, **kwargs,
        )  # fmt: skip
        logits = self.logits(slice_logits_to_keep(out.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = ForMaskedLMLoss(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        found = {name: value for name, value in out.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **found)


def adapt_both(model: EncoderDecoder, **tokens: Any) -> GeoNormForConditionalGeneration:
    """The encoder-decoder as a transformers model, sharing its weights; tokens: as `adapt`, and
    decoder_start_token_id."""
    config = GeoNormEncoderDecoderConfig.of(model.config, dtype=model.embed.weight.dtype, **tokens)
    return share_weights(GeoNormForConditionalGeneration, config, model, both_name)


FRONT = {"embed": "embed_tokens", "position": "position", "embed_norm": "embed_norm"}
"""What stands before both streams: in our model, and in the encoder of transformers' model."""


def both_name(name: str) -> str:
    """The name of an encoder-decoder's weight in its model of transformers."""
    place, _, rest = name.partition(".")
    if place in ("logits_slot", "transform"):
        return name
    if place in FRONT:
        return f"model.encoder.{FRONT[place]}.{rest}"
    return f"lm_head.{rest}" if place == "head" else f"model.{name if place == 'encoder' else f'decoder.{name}'}"
