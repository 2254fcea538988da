"""Data: text sources, tokenizers, cached tokens; `geonorm.lab.data.batches`, which needs torch, is apart."""

from geonorm.lab.data.inspect import describe
from geonorm.lab.data.source import Source
from geonorm.lab.data.sources import corpora, open_source
from geonorm.lab.data.tokenizer import Tokenizer, load_tokenizer
from geonorm.lab.data.tokens import TokenData, prepare

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
