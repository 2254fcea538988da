"""What a run learns from: tokens, the tokenizer that made them, and what is asked of the model about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ...models.config import DecoderConfig
from ..config import Recipe, TrainConfig
from ..data import TokenData, Tokenizer, load_tokenizer, open_source, tokenize
from ..data.batches import Batches, Objective, pick_objective, validation_batches
from ..distributed.ranks import World
from .validation import Validation


@dataclass
class TrainingText:
    """Training and validation tokens with the tokenizer that made them."""

    tokens: TokenData
    tokenizer: Tokenizer
    objective: Objective

    @property
    def sha256(self) -> str:
        return self.tokens.sha256

    @property
    def fingerprint(self) -> str:
        return self.tokenizer.fingerprint

    def batches(self, c: TrainConfig, shape: DecoderConfig) -> Batches:
        return Batches(self.tokens.train, c.batch_size, shape.context, c.seed, self.objective)

    def validation(self, c: TrainConfig, shape: DecoderConfig, device: torch.device, world: World) -> Validation:
        return Validation(self.tokens, c, shape.context, device, world, self.objective)

    def save(self, folder: Path) -> None:
        """Puts the tokenizer into the folder of a run."""
        if not (folder / "tokenizer.json").exists():
            self.tokenizer.save(folder / "tokenizer.json")


def load_text(config: Recipe) -> TrainingText:
    """Tokens for a run or comparison; prepares and caches them on first use. DataError for anything unusable, too few
    tokens for one batch or one validation window included."""
    shape = config.shape("pre")
    source = open_source(config.data)
    tokenizer = load_tokenizer(config.tokens.tokenizer, source, shape.vocab_size, mask=not shape.causal)
    tokens = tokenize(source, tokenizer)
    Batches(tokens.train, config.batch_size, shape.context, seed=0)
    next(validation_batches(tokens.validation, 1, shape.context))
    return TrainingText(tokens, tokenizer, pick_objective(config.objective, tokenizer))
