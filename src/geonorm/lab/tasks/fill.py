"""Missing spans of a text, filled in by an encoder-decoder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from ...nn.encoder_decoder import EncoderDecoder
from ...nn.sampling import generate_answer, sample
from ..data.tokenizer import SENTINEL
from ..open import Opened, OpenedRun
from .config import GenerateConfig

MARK = re.compile(SENTINEL.format(r"\d+"))


def fill(opened: Opened, config: GenerateConfig) -> Iterator[str]:
    """The prompt with something in the place of each mark, <extra_id_0> and so on in whatever order: piece by piece
    when the whole answer is there. A span that the model does not come to stays empty. ConfigError for a prompt without
    marks, or with more than the model knows."""
    c, tokenizer = config, opened.reader
    pieces, known = MARK.split(c.prompt), tokenizer.sentinels
    count = len(pieces) - 1
    if not 0 < count <= len(known):
        raise ConfigError(
            f"this model fills in missing spans (--objective denoise): mark 1 to {len(known)} of them in --prompt with "
            f"{SENTINEL.format(0)}, got {count}"
            if known
            else f"the tokenizer of {opened.name} has no marks for missing spans ({SENTINEL.format(0)}, ...)"
        )
    source: list[int] = []
    for piece, behind in zip(pieces, [*known[:count], tokenizer.eos], strict=True):
        source += [*opened.encode(piece), behind]
    generator = torch.Generator(opened.device).manual_seed(c.seed)
    opened.check(max(source))
    given = torch.tensor([source], device=opened.device)
    answer: list[int] = []
    rest = c.tokens, c.temperature, c.top_k, generator
    if isinstance(opened, OpenedRun):
        assert isinstance(opened.model, EncoderDecoder)
        written = generate_answer(opened.model, given, tokenizer.eos, *rest)
    else:
        written = write_answer(opened.model, given, opened.start, *rest)
    for token in written:
        if int(token) == tokenizer.eos:
            break
        answer.append(int(token))
    spans = read_spans(answer, known)
    for piece, mark in zip(pieces, [*known[:count], None], strict=True):
        yield piece
        if mark in spans:
            yield tokenizer.decode(spans[mark])


@torch.no_grad()
def write_answer(
    model: Any, source: Tensor, start: int, tokens: int, temperature: float, top_k: int | None,
    generator: torch.Generator,
) -> Iterator[Tensor]:  # fmt: skip
    """As `nn.sampling.generate_answer`, by a model of transformers."""
    memory, past, fresh = model.get_encoder()(source), None, torch.full_like(source[:, :1], start)
    for _ in range(tokens):
        out = model(encoder_outputs=memory, decoder_input_ids=fresh, past_key_values=past, use_cache=True)
        past, fresh = out.past_key_values, sample(out.logits[:, -1].float(), temperature, top_k, generator)
        yield fresh


def read_spans(answer: list[int], sentinels: tuple[int, ...]) -> dict[int | None, list[int]]:
    """What follows each sentinel of an answer, the first time that it stands there; what stands before all is left
    out."""
    spans: dict[int | None, list[int]] = {}
    current: list[int] = []
    for token in answer:
        if token in sentinels:
            current = []
            spans.setdefault(token, current)
        else:
            current.append(token)
    return spans
