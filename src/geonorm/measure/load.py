"""Hugging Face models and tokenizers: safetensors only, no code from elsewhere unless asked for."""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..errors import CheckpointError, ConfigError, explained, import_extra, near_folder
from ..parsing import from_json

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
NUMBER = re.compile(r"\d+")
FROM_HUB = (ImportError, OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError)
"""Errors of transformers and the hub."""
PATIENCE = 5.0
"""Seconds until the hub must have answered."""


def hugging_face() -> Any:
    """The transformers package, quiet. ConfigError where it is missing."""
    transformers = import_extra("transformers", "a Hugging Face model", "hf")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_config(
    name: str,
    *,
    causal: bool = False,
    quantised: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Configuration of a local directory or hub model. ConfigError where there is none that can be read, or where it is
    quantised and may not be. causal: for a model that predicts tokens."""
    if not Path(name).exists():
        check_name(name, revision)
    with explained(no_model(name, causal), ConfigError, *FROM_HUB):
        config = hugging_face().AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    method = getattr(config, "quantization_config", None)
    if method and not quantised:
        kind = method.get("quant_method", "?") if isinstance(method, dict) else getattr(method, "quant_method", "?")
        raise ConfigError(f"{name} has quantised weights ({kind}): probe the model that it was made from")
    return config


def no_model(name: str, causal: bool) -> str:
    return f"{name} holds no run and no {'causal language ' if causal else ''}model that can be read"


def check_name(name: str, revision: str | None = None) -> None:
    """ConfigError unless the hub, or its cache on this machine, has a model of this name. Within seconds: transformers
    would try a hub out of reach for half a minute."""
    missing = f"there is no run and no model folder {name}"
    if not HUB_NAME.fullmatch(name):
        raise ConfigError(f"{missing}{near_folder(name)}")
    hugging_face()
    import huggingface_hub

    try:
        if not isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
            huggingface_hub.HfApi().model_info(name, revision=revision, timeout=PATIENCE)
    except Exception as error:  # its classes belong to the library of the connection, which hub versions exchange
        reason = f"the hub gives none ({type(error).__name__})"
        raise ConfigError(f"{missing}, and {reason}{near_folder(name)}") from None


def model_class(config: Any, causal: bool) -> Any:
    """The class that the weights were saved from, or an Auto class of its kind. causal: one that predicts tokens."""
    transformers = hugging_face()
    names = getattr(config, "architectures", None) or ()
    known = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    if known and not causal:
        return known[0]
    if predicts_masked(config):
        return transformers.AutoModelForMaskedLM
    predicts = causal or any(part in name for name in names for part in ("CausalLM", "LMHead"))
    return transformers.AutoModelForCausalLM if predicts else transformers.AutoModel


def predicts_masked(config: Any) -> bool:
    """True for weights of a model of masked tokens."""
    return any("MaskedLM" in name for name in getattr(config, "architectures", None) or ())


def load_model(
    name: str,
    config: Any,
    device: torch.device,
    dtype: str = "auto",
    *,
    causal: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The model of a configuration, in evaluation mode, each parameter from its files but for a pooler, which many
    leave out; dtype auto: as stored. causal: one that predicts tokens, masked ones if its weights do. ConfigError where
    its weights are not safetensors, CheckpointError where they are of another model than config.json describes:
    transformers would draw what is missing at random."""
    with explained(no_model(name, causal), ConfigError, *FROM_HUB):
        for index in Path(name).glob("*.index.json"):
            weights = from_json(index.read_text(encoding="utf-8"))["weight_map"]
            if not all(re.fullmatch(r"[\w.-]+\.safetensors", file) for file in weights.values()):
                raise CheckpointError(f"{index} names other files than safetensors of its own folder")
        model, report = model_class(config, causal).from_pretrained(
            name, config=config, dtype="auto" if dtype == "auto" else getattr(torch, dtype), revision=revision,
            trust_remote_code=trust_remote_code, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    missing = {key for key in report["missing_keys"] if "pooler." not in key} & dict(model.named_parameters()).keys()
    known = {NUMBER.sub("#", key) for key in model.state_dict()}
    # what a stock model leaves out is no further block of those that it has
    extra = {
        key for key in report["unexpected_keys"] if config.model_type == "geonorm" or NUMBER.sub("#", key) in known
    }
    for key in sorted(missing | extra | {entry[0] for entry in report["mismatched_keys"]}):
        raise CheckpointError(f"{name} and its config.json do not agree on {key}: one of the two is of another model")
    return model.to(device).eval()


def load_model_tokenizer(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer beside a model. ConfigError where there is none."""
    remedy = "save one there (geonorm probe also takes another by --tokenizer)"
    with explained(f"no tokenizer in {name} that can be read: {remedy}", ConfigError, *FROM_HUB):
        return hugging_face().AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )


def context_of(config: Any) -> int | None:
    """The most tokens a model can read, or None."""
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
    most = next((number for number in limits if number is not None), None)
    if most is None:
        return None
    padded = getattr(config, "model_type", None) in ("roberta", "xlm-roberta")  # positions count from after padding
    return int(most) - (config.pad_token_id + 1 if padded else 0)
