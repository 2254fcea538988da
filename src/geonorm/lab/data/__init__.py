"""Data: text sources, tokenizers, cached tokens; `geonorm.lab.data.batches`, which needs torch, is apart."""

from .inspect import describe
from .source import Source
from .sources import corpora, open_source
from .tokenizer import Tokenizer, load_tokenizer
from .tokens import TokenData, prepare

__all__ = [
    "Source",
    "TokenData",
    "Tokenizer",
    "corpora",
    "describe",
    "load_tokenizer",
    "open_source",
    "prepare",
]
