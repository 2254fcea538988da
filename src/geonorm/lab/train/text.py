"""The text of a run: its tokens, the tokenizer that made them, and the objective."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import DataError
from ..config import Evaluation
from ..data import TokenData, Tokenizer, load_tokenizer, open_source, tokenize
from ..data.batches import Batches, Objective, pick_objective, validation_batches
from ..distributed.ranks import ALONE, World
from ..resolve import TextPart
from ..runs.folder import RunFolder, write_atomic
from ..runs.identity import identity_of
from ..runs.provenance import Sources
from .validation import Validation


@dataclass
class TrainingText:
    """Training and validation tokens with the tokenizer that made them."""

    part: TextPart
    tokens: TokenData
    tokenizer: Tokenizer
    objective: Objective

    def batches(self) -> Batches:
        return Batches(self.tokens.train, self.part.batch_size, self.part.context, self.part.seed, self.objective)

    def validation(
        self, evaluation: Evaluation, steps: int, device: torch.device, world: World = ALONE, every: int | None = None
    ) -> Validation:
        """steps: of the run, which decides how much text the last evaluation reads. every: steps from one evaluation to
        the next."""
        seen, interval = steps * self.part.step_tokens, every and every * self.part.step_tokens
        return Validation(self.tokens, evaluation, self.part.context, seen, device, world, self.objective, interval)

    def identity(self, settings: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
        """All that decides the numbers of a run with these settings on this text, by name."""
        return identity_of(settings, self.tokens.sha256, self.tokenizer.fingerprint, sources)

    def save(self, run: RunFolder) -> None:
        """Put the tokenizer into the folder of a run."""
        write_atomic(run.path / "tokenizer.json", self.tokenizer.json)


def load_text(part: TextPart) -> TrainingText:
    """Tokens for a run or comparison; prepares and caches them on first use. DataError for anything unusable, also for
    too few tokens for one batch or one validation window."""
    source = open_source(part.source, part.field)
    tokenizer = load_tokenizer(part.tokenizer, source, part.vocab_size, mask=part.objective == "mlm")
    if part.document_end is not None and tokenizer.eos not in (-1, part.document_end):
        raise DataError(
            f"{tokenizer.eos} ends a document here: set --model.document_end to it, not {part.document_end}"
        )
    text = TrainingText(
        part, tokenize(source, tokenizer, limit=part.limit), tokenizer, pick_objective(part.objective, tokenizer)
    )
    text.batches()
    next(validation_batches(text.tokens.validation, 1, part.context))
    return text
