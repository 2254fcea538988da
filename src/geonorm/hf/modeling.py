"""Models for transformers: thin adapters around the blocks of `geonorm.models`.

What is here is what transformers wants to know: masks, its caches, its attention functions, its outputs. Weights,
norms, rotation and the residual scheme are those of `geonorm.models`, so there is one implementation. The residual
stream is fp32 where weights are in half precision.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel, initialization as init
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..errors import ConfigError, require
from ..models.attention import rotary_of, token_tables, values_for_block
from ..models.decoder import Transform, model_norm, slot_on_logits
from ..models.init import draw_weight, linear, matrices, undrawn_table, weights_of
from ..norms import TaperNorm, upcast
from ..residual import Residual, StreamEnd
from ..schemes import Progress, Scheme, Site, belongs_to_scheme, restore
from .config import SLIDING, GeoNormConfig, layer_types
from .layers import LAYERS, Attend, HiddenState
from .loading import LOADED, ReadsFolders, loaded_kept
from .versions import CACHE, check_arguments, check_cache, one_cache, warn_if_untested


class GeoNormPreTrainedModel(ReadsFolders, PreTrainedModel):
    """The base of all models of transformers under a scheme.

    >>> issubclass(geonorm.hf.GeoNormForCausalLM, geonorm.hf.GeoNormPreTrainedModel)
    True
    """

    config: GeoNormConfig
    config_class = GeoNormConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["GeoNormLayer", "GeoNormParallelLayer"]  # noqa: RUF012
    # accelerate moves arguments to where a module is: not the cache, nor the residual that comes next
    _skip_keys_device_placement = ["past_key_values", "cache", "then"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    # vLLM takes no buffers from files and stops at them: it leaves these out, and keeps the index built into a residual
    _keys_to_ignore_on_load_unexpected = [r"\.layer$"]  # noqa: RUF012
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": HiddenState,
        "attentions": OutputRecorder(Attend, index=1),
    }

    def __init__(self, config: GeoNormConfig, *inputs: Any, **settings: Any) -> None:
        super().__init__(config, *inputs, **settings)
        warn_if_untested()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws as `Decoder.reset_parameters` does, in the same order, what was not loaded; called for each module
        after its children. Buffers too: from_pretrained leaves garbage in what no file held."""
        if isinstance(module, Residual):
            module.layer.fill_(module.index)  # a file that was put together from others does not move it
            with loaded_kept(module.own):
                module.own.reset_parameters()
            site = module.place()
            for matrix in matrices(module.branch):
                self.draw(matrix, module.scheme, site)
        elif isinstance(module, nn.Embedding) or getattr(module, "role", None) in ("head", "transform"):
            base: Any = self.base_model
            end = base.exit if isinstance(module, nn.Linear) else base.entry
            self.draw(module, end.scheme, end.site)
        elif belongs_to_scheme(module):
            with loaded_kept(module):
                restore(module, alone=True)  # what it lies in is passed over where it has nothing of its own
        elif not isinstance(module, nn.Linear) and (reset := getattr(module, "reset_parameters", None)):
            with loaded_kept(module):
                reset()

    def draw(self, module: Any, scheme: Scheme, site: Site) -> None:
        """The weights of a linear layer or an embedding, as the scheme at the site begins."""
        if not getattr(module.weight, LOADED, False):
            draw_weight(module.weight, getattr(module, "role", "embed"), scheme, site, self.config.shape())
        if getattr(module, "bias", None) is not None:
            init.zeros_(module.bias)

    @torch.no_grad()
    def resize_token_embeddings(self, *args: Any, **settings: Any) -> nn.Embedding:
        """As transformers does it; new weights meet the scheme's constraints. ConfigError where blocks have tables of
        token vectors, which would not grow."""
        require(
            self.config.values != "token" or not (args or settings),
            "values=token: tables of token vectors in the blocks do not grow with the vocabulary",
        )
        embedding: nn.Embedding = super().resize_token_embeddings(*args, **settings)
        self.constrain()
        return embedding

    @torch.no_grad()
    def constrain(self) -> None:
        """Applies the constraints that schemes such as nGPT put on weights: call it after every optimizer step."""
        for role, weight, scheme, _ in weights_of(self):
            scheme.constrain({role: [weight]})

    @torch.no_grad()
    def save_pretrained(self, *args: Any, **settings: Any) -> None:
        """As transformers does it; warns where training left out the constraints of the scheme (weights are further
        from them than half precision explains) or the count of its steps. Quantised weights are as near as they can
        be."""
        faults = []
        for role, weight, scheme, _ in () if getattr(self, "is_quantized", False) else weights_of(self):
            if scheme.constrains and not weight.is_meta:
                constrained = weight.clone()
                scheme.constrain({role: [constrained]})
                if (constrained - weight).norm() > 0.01 * weight.norm():
                    faults.append(f"weights ({role}) are not where {scheme} keeps them")
        counts = [module.done for module in self.modules() if isinstance(module, Progress | TaperNorm)]
        if self.training and any(not done.is_meta and done == 0 for done in counts):
            faults.append("what changes over training (scheme, norm) has counted no step")
        if faults:
            warnings.warn(
                f"{faults[0]}: train with geonorm.hf.ConstrainCallback, or call model.constrain() and "
                "geonorm.schemes.advance(model) after every optimizer step",
                stacklevel=2,
            )
        super().save_pretrained(*args, **settings)


class GeoNormModel(GeoNormPreTrainedModel):
    """The stream from embedding to exit; returns the last hidden states in the dtype of the embedding.

    >>> import torch
    >>> from geonorm import hf
    >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    >>> hf.GeoNormModel(hf.GeoNormConfig(**size))(torch.arange(6)[None]).last_hidden_state.shape
    torch.Size([1, 6, 8])
    """

    def __init__(self, config: GeoNormConfig) -> None:
        super().__init__(config)
        scheme, c = config.rule(), config.shape()
        norm = model_norm(c)
        # without padding_idx: where the end of a text serves as padding too, it would never learn
        self.embed_tokens = undrawn_table("embed", c.vocab_size, c.width)
        self.position = undrawn_table("position", c.context, c.width) if c.positions == "learned" else None
        self.values = token_tables(c)
        self.embed_norm = norm() if c.embed_norm else None
        self.rotary, self.layer_types = rotary_of(c), layer_types(c)
        self.entry = StreamEnd(scheme, Site(0, "entry", c.layers, c.sublayers), norm)
        self.blocks = nn.ModuleList(LAYERS[c.block](c, scheme, number) for number in range(c.layers))
        self.exit = StreamEnd(scheme, Site(c.layers - 1, "exit", c.layers, c.sublayers), norm)
        self.hidden_state = HiddenState(self.entry.scheme)
        self.gradient_checkpointing = False
        for module in self.modules():
            if isinstance(module, Attend):
                module.config = self.config
        self.post_init()

    def begin(
        self, ids: Tensor | None, embeds: Tensor | None, position_ids: Tensor | None, cache: Any
    ) -> tuple[Tensor, Tensor, torch.dtype]:
        """What enters the stream after the tokens of a cache, its positions, the dtype of the model."""
        if (ids is None) == (embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        embedded: Tensor = self.embed_tokens(ids) if embeds is None else embeds
        if position_ids is None:
            past = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(embedded.shape[1], device=embedded.device).unsqueeze(0) + past
        x = upcast(embedded)
        if self.position is not None:
            x = x + self.position(position_ids)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        return x, position_ids, embedded.dtype

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        check_arguments(kwargs)
        cache = one_cache(past_key_values, cache, kwargs)
        x, position_ids, dtype = self.begin(input_ids, inputs_embeds, position_ids, cache)
        check_cache(cache, attention_mask, x.shape[1])
        if input_ids is None and self.values:
            raise ConfigError("this model adds a vector of each token to its values (values=token): give input_ids")
        before = cache  # masks are made from the caller's: given a new one, transformers misses texts packed in a row
        if use_cache and cache is None and self.config.is_causal:
            cache = DynamicCache(config=self.config)
        masks = attention_mask  # generate makes those of a static cache itself
        if not isinstance(masks, dict):
            masks = {
                kind: (create_sliding_window_causal_mask if kind == SLIDING else create_causal_mask)(
                    config=self.config,
                    inputs_embeds=x.new_empty((*x.shape[:2], 0), dtype=dtype),  # as much as masks are made from
                    attention_mask=attention_mask,
                    position_ids=position_ids,
                    **{CACHE: before},
                )
                for kind in dict.fromkeys(self.layer_types)
            }
        turns = None if self.rotary is None else self.rotary(position_ids.unsqueeze(1))
        kwargs.update({"positions": turns, CACHE: cache})
        x = self.entry(x)
        start, first = self.hidden_state.scheme.seen(x), None
        for layer, block in enumerate(self.blocks):
            values = values_for_block(self.values, input_ids, layer, first)
            out = block(x, values, masks[self.layer_types[layer]], **kwargs)
            x, first = out if isinstance(out, tuple) else (out, first)
            self.hidden_state(start, x)
        return BaseModelOutputWithPast(last_hidden_state=self.exit(x).to(dtype), **{CACHE: cache})


class GeoNormLanguageModel(GeoNormPreTrainedModel):
    """`GeoNormModel`, head, and the scheme's scale on the logits where it has one: what all language models are."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    is_causal: bool

    def __init__(self, config: GeoNormConfig) -> None:
        if config.is_causal != self.is_causal:
            sides, auto = ("one side", "CausalLM") if config.is_causal else ("both sides", "MaskedLM")
            raise ConfigError(
                f"a model that attends to {sides} (is_causal={config.is_causal}) is no {type(self).__name__}: use "
                f"AutoModelFor{auto}"
            )
        super().__init__(config)
        self.model = GeoNormModel(config)
        self.transform = Transform(config.shape()) if config.transform else None
        self.lm_head = linear("head", config.hidden_size, config.vocab_size, bias=config.transform)
        self.logits_slot = self.slot_on_logits()
        self.post_init()

    @property
    def blocks(self) -> nn.ModuleList:
        return self.model.blocks

    def slot_on_logits(self) -> nn.Module | None:
        c = self.config
        return slot_on_logits(self.model.exit, c.vocab_size, c.hidden_size, c.soft_cap)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of last hidden states (..., width): (..., vocab_size)."""
        if self.transform is not None:
            hidden = self.transform(hidden).to(hidden.dtype)
        logits: Tensor = self.lm_head(hidden)
        return logits if self.logits_slot is None else self.logits_slot(logits)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """labels: ids to predict, (batch, tokens), -100 where there is nothing to predict; of a causal model they are
        shifted inside."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            **kwargs,
        )
        logits = self.logits(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )

    @torch.no_grad()
    def resize_token_embeddings(self, *args: Any, **settings: Any) -> nn.Embedding:
        """As of any of these models; the scheme's scale on logits grows too."""
        embedding = super().resize_token_embeddings(*args, **settings)
        old, new = self.logits_slot, self.slot_on_logits()
        shapes = [[p.shape for p in slot.parameters()] for slot in (old, new) if slot is not None]
        if old is not None and new is not None and shapes[0] != shapes[1]:
            for was, becomes in zip(old.parameters(), new.parameters(), strict=True):
                rows = min(len(was), len(becomes))
                becomes[:rows] = was[:rows]
                becomes.requires_grad_(was.requires_grad)
            self.logits_slot = new.to(self.lm_head.weight)
        return embedding


class GeoNormForCausalLM(GeoNormLanguageModel, GenerationMixin):
    """The language model that predicts the next token, and writes.

    >>> import torch
    >>> from geonorm import hf
    >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    >>> model = hf.GeoNormForCausalLM(hf.GeoNormConfig(scheme="geonorm", **size))
    >>> model(torch.arange(6)[None]).logits.shape
    torch.Size([1, 6, 16])
    """

    is_causal = True


class GeoNormForMaskedLM(GeoNormLanguageModel):
    """The language model that sees both sides of a token and predicts those that are masked.

    >>> from geonorm import hf
    >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    >>> hf.GeoNormForMaskedLM(hf.GeoNormConfig(is_causal=False, **size)).is_causal
    False
    """

    is_causal = False
