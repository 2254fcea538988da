"""What differs between the releases of transformers that `pyproject.toml` allows: the name of the cache."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What this release calls the cache of keys and values: past_key_values until 5.23."""


def one_cache(past_key_values: Any, cache: Any, arguments: dict[str, Any]) -> Any:
    """The cache, which may have either name. In releases that call it past_key_values, the paged cache of continuous
    batching goes by the name of cache to the attention function, which fills it: it stays among the arguments."""
    if cache is not None and CACHE != "cache" and not isinstance(cache, transformers.Cache):
        arguments["cache"] = cache
        return None
    return past_key_values if cache is None else cache
