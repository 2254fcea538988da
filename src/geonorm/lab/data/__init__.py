"""Data: text sources, tokenizers, cached tokens; `geonorm.lab.data.batches`, which needs torch, is apart."""

from .source import NO_TEXT, Source, corpora, open_source
from .tokenizer import Tokenizer, load_tokenizer
from .tokens import TokenData, inspect_source, tokenize

__all__ = [
    "NO_TEXT", "Source", "TokenData", "Tokenizer", "corpora", "inspect_source", "load_tokenizer", "open_source",
    "tokenize",
]  # fmt: skip
