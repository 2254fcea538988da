"""What a run learns from: tokens, the tokenizer that made them, and what is asked of the model about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config import Recipe
from ..data import TokenData, Tokenizer, load_tokenizer, open_source, tokenize
from ..data.batches import Batches, validation_batches
from ..data.objectives import Objective, count_spans, pick_objective
from ..scale.world import ALONE, World


@dataclass
class Text:
    """Training and validation tokens with the tokenizer that made them."""

    tokens: TokenData
    tokenizer: Tokenizer
    objective: Objective


def load_text(config: Recipe, world: World = ALONE) -> Text:
    """Tokens for a run or comparison; prepares and caches them on first use. DataError for anything unusable, too few
    tokens for one batch or one validation window included."""
    world.dog.at(0, "preparing the data")
    shape = config.decoder("pre")
    cache = Path(config.tokens.cache) if config.tokens.cache else None
    source = open_source(config.data)
    spans = 0 if shape.encoder_layers is None else count_spans(shape.context)[1]
    tokenizer = load_tokenizer(config.tokens.tokenizer, source, shape.vocab_size, cache, not shape.causal, spans)
    moved = lambda *_: world.dog.at(0, "preparing the data")  # noqa: E731 the other ranks wait
    tokens = tokenize(source, tokenizer, cache, progress=moved)
    Batches(tokens.train, config.batch_size, shape.context, seed=0)
    next(validation_batches(tokens.validation, 1, shape.context))
    return Text(tokens, tokenizer, pick_objective(config.objective, tokenizer, shape.context))
