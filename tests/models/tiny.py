"""A small decoder and its tokens, for the tests of models."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig

TINY = DecoderConfig(layers=2, width=32, heads=4, hidden=48, vocab_size=61, context=16)


def decoder(seed: int = 0, **changes: Any) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(replace(TINY, **changes))


def ids(batch: int = 2, tokens: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(61, (batch, tokens), generator=torch.Generator().manual_seed(seed))
