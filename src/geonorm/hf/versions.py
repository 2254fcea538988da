"""The releases of transformers that this is tested with, and what differs between them."""

import warnings
from typing import Any

import transformers
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

TESTED = (5, 23), (5, 24)
"""The oldest and the newest release; `pyproject.toml` has the same bounds."""
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What this release calls the cache of keys and values: past_key_values until 5.23."""
PASSED_ON = frozenset(
    """output_hidden_states output_attentions return_dict is_causal
    cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k seq_idx
    num_items_in_batch shift_labels ignore_index
    read_index write_index block_table logits_indices logits_processor_args
    attention_instances forward_batch""".split()
)
"""Arguments beside those of the signature: of outputs, packed texts, the loss, continuous batching, vLLM and SGLang."""


def warn_if_untested() -> None:
    """A warning where this release of transformers is none of those that were tested."""
    oldest, newest = (".".join(map(str, release)) for release in TESTED)
    if not TESTED[0] <= tuple(map(int, transformers.__version__.split(".")[:2])) <= TESTED[1]:
        warnings.warn(
            f"geonorm models are tested with transformers {oldest} to {newest}, and this is "
            f"{transformers.__version__}: compare generation with use_cache=False before you rely on it",
            stacklevel=2,
        )


def check_arguments(names: Any) -> None:
    """TypeError for an argument that no part of the model knows: to swallow it could change the result."""
    for name in names:
        if name not in PASSED_ON:
            raise TypeError(f"forward() got an unexpected keyword argument {name!r}")


def one_cache(past_key_values: Any, cache: Any, arguments: dict[str, Any]) -> Any:
    """The cache, which may have either name. In releases that call it past_key_values, the paged cache of continuous
    batching goes by the name of cache to the attention function, which fills it: it stays among the arguments."""
    if past_key_values is not None and cache is not None:
        raise TypeError("forward() takes one of past_key_values and cache: they are two names of the same")
    if cache is not None and CACHE != "cache" and not isinstance(cache, transformers.Cache):
        arguments["cache"] = cache
        return None
    return past_key_values if cache is None else cache


def check_cache(cache: Any, mask: Any, tokens: int) -> None:
    """ValueError where the mask is about more tokens than the cache holds and the new ones. A cache of fixed size may
    come with a mask of that size."""
    if not isinstance(mask, Tensor) or mask.dim() != 2 or getattr(cache, "is_compileable", False):
        return
    past = 0 if cache is None else cache.get_seq_length()
    if mask.shape[1] != past + tokens:
        raise ValueError(
            f"attention_mask is about {mask.shape[1]} tokens, but the cache holds {past} and {tokens} follow"
        )
