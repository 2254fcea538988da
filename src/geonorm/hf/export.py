"""A model as a folder that transformers loads: weights, configuration, tokenizer, generation settings, model card."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from ..errors import CheckpointError, ConfigError, cause
from ..models.decoder import Decoder
from ..schemes import parse
from .config import GeoNormConfig
from .layouts import architecture
from .modeling import GeoNormForCausalLM, GeoNormForMaskedLM
from .remote import FILE, auto_map, modeling_source
from .stock import to_stock


def adapt(decoder: Decoder, **tokens: Any) -> GeoNormForCausalLM | GeoNormForMaskedLM:
    """The decoder as a transformers model, sharing its weights; tokens: bos_token_id, eos_token_id, pad_token_id.

    >>> from geonorm import Decoder, DecoderConfig, hf
    >>> decoder = Decoder(DecoderConfig("pre", layers=1, width=8, heads=2, hidden=8, vocab_size=16))
    >>> hf.adapt(decoder).lm_head.weight.data_ptr() == decoder.head.weight.data_ptr()
    True
    """
    config = GeoNormConfig.of(decoder.config, dtype=decoder.embed.weight.dtype, **tokens)
    kind = GeoNormForCausalLM if decoder.config.causal else GeoNormForMaskedLM
    with torch.device("meta"):
        model: Any = kind(config)
    weights = {hf_name(name): value for name, value in decoder.state_dict(keep_vars=True).items()}
    frozen = [parameter for parameter in decoder.parameters() if not parameter.requires_grad]
    model.load_state_dict(weights, strict=True, assign=True)
    model.tie_weights()
    for parameter in frozen:  # assign made them trainable
        parameter.requires_grad_(False)
    return model.train(decoder.training)


def hf_name(name: str) -> str:
    """The name of a decoder's weight in a language model of transformers."""
    place, _, rest = name.partition(".")
    if place in ("logits_slot", "transform"):
        return name
    return f"lm_head.{rest}" if place == "head" else f"model.{'embed_tokens' if place == 'embed' else place}.{rest}"


PAD_NAMES = ("<|padding|>", "<|pad|>", "<pad>", "[PAD]", "<PAD>", "<|finetune_right_pad_id|>")


def padding(tokenizer: Tokenizer, end: int) -> int:
    """The id of padding: a token of its own where the tokenizer has one, else `end`. With `end` as padding, training
    leaves the ends of texts out of the loss, and they are not learned."""
    ids = (tokenizer.token_to_id(name) for name in PAD_NAMES)
    return next((i for i in ids if i is not None), end)


def fast_tokenizer(text: str, end: int, context: int, mask: int | None = None) -> Any:
    """A tokenizer.json as a fast tokenizer of transformers. The token `end` begins texts too: in training it stands
    before every text, and the beginning-of-text token that some tokenizers have was never seen there. mask: the mask
    token of a model that sees both sides; it is padded on the right, because its positions count from the left."""
    tokenizer = Tokenizer.from_str(text)
    token = tokenizer.id_to_token(end)
    # in the place of what a published tokenizer puts around a text, which was never seen in training
    if tokenizer.num_special_tokens_to_add(False):
        tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=token,
        eos_token=token,
        pad_token=tokenizer.id_to_token(padding(tokenizer, end)),
        **({"padding_side": "left"} if mask is None else {"mask_token": tokenizer.id_to_token(mask)}),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def check_target(to: Path) -> None:
    """ConfigError unless the folder is new or empty: it is replaced as a whole."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is {'not empty' if to.is_dir() else 'a file'}: choose another --to")


def export(
    decoder: Decoder,
    tokenizer: str,
    end: int,
    to: Path,
    layout: str = "geonorm",
    remote_code: bool = False,
    card: str = "",
    shard: str = "5GB",
    mask: int | None = None,
    trained_on: str | None = None,
) -> Path:
    """Writes the folder and returns it; it appears whole or not at all.

    tokenizer: a tokenizer.json as text; end: the id that ends a document; mask: that of an encoder's mask token.
    layout: geonorm, an architecture of transformers such as gpt2, or stock, which is the first of those that the
    decoder equals. remote_code: the folder brings its modeling file, for `trust_remote_code=True` where geonorm is not
    installed. card: text of README.md. shard: the size of the largest weight file. trained_on: sha256 of the training
    data, for `geonorm eval`. ConfigError if the folder is not empty, or if the decoder does not equal the architecture;
    CheckpointError if a weight is not finite.

    >>> from pathlib import Path
    >>> from tokenizers import Tokenizer, models
    >>> decoder = geonorm.Decoder(geonorm.DecoderConfig(layers=1, width=16, heads=2, hidden=16, vocab_size=4))
    >>> tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="a")).to_str()
    >>> folder = geonorm.hf.export(decoder, tokenizer, end=2, to=Path("model"))
    >>> sorted(file.name for file in folder.iterdir())
    [...'config.json', ...'model.safetensors', ...]
    """
    check_target(to)
    for name, parameter in decoder.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise CheckpointError(f"{name} is not finite: this model has diverged (geonorm probe says where it breaks)")
    model_type = architecture(decoder.config, layout)
    if model_type != "geonorm" and remote_code:
        raise ConfigError(f"--layout {layout} loads without --remote-code: leave one of them out")
    source = modeling_source(parse(decoder.config.scheme)) if remote_code else ""
    pad = padding(Tokenizer.from_str(tokenizer), end)
    tokens = {"bos_token_id": end, "eos_token_id": end}
    if pad < decoder.config.vocab_size and (pad != end or model_type == "geonorm"):
        tokens["pad_token_id"] = pad  # a stock embedding never learns its row of padding: not that of the end
    model: Any = adapt(decoder, **tokens)
    if model_type != "geonorm":
        model = to_stock(model, model_type)
    if remote_code:
        model.config.auto_map = auto_map(decoder.config)
    if trained_on:  # whatever the architecture: what was trained on is not held out
        model.config.trained_on_sha256 = trained_on
    if decoder.config.causal:
        model.generation_config = transformers.GenerationConfig(**{"pad_token_id": end, **tokens})
    files = {"README.md": card, FILE: source}
    return put_folder(model, to, files, fast_tokenizer(tokenizer, end, decoder.config.context, mask), shard)


def put_folder(model: Any, to: Path, files: Mapping[str, str], tokenizer: Any, shard: str) -> Path:
    """Writes a model of transformers as a folder, with its tokenizer and those of the other files that are not empty.
    The folder appears whole or not at all."""
    aside = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(aside, max_shard_size=shard)
        tokenizer.save_pretrained(aside)
        for name, text in files.items():
            if text:
                (aside / name).write_text(text, encoding="utf-8")
        for file in aside.iterdir():  # safetensors makes its files readable to their owner alone
            file.chmod((aside / "config.json").stat().st_mode)
        if to.exists():
            to.rmdir()
        os.replace(aside, to)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {to}: {cause(error)}; make room there, or choose another --to") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return to
