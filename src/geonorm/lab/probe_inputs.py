"""The inputs of a probe: a model, and the text that its hidden states are measured on."""

from collections.abc import Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices import pick_device
from ..errors import ConfigError, DataError
from ..measure.config import ProbeConfig
from ..measure.probe import Inputs
from ..models.decoder import IGNORED
from .data import open_source
from .data.batches import HELD_OUT_SEED
from .open import Opened, OpenedRun, open_model

WINDOWS_PER_PASS = 8
"""Windows of text in one forward pass, unless --batch says otherwise."""


def open_probed(name: str, config: ProbeConfig) -> Opened:
    """A run of ours or a Hugging Face model by the settings of a probe. ConfigError or CheckpointError, one line."""
    return open_model(
        name, pick_device(config.device), causal=False, dtype=config.dtype, tokenizer=config.tokenizer,
        revision=config.revision, trust_remote_code=config.trust_remote_code,
    )  # fmt: skip


def read_data(
    opened: Opened, data: str, config: ProbeConfig
) -> tuple[Sequence[Tensor | Inputs], Sequence[Tensor | Inputs]]:
    """Text for an opened model, in batches; and the same with labels, where the probe needs a loss of labels."""
    losses = config.gradients or config.ablate_blocks
    if opened.tokenizer is None:
        raise ConfigError("a model in memory needs its tokenizer to read text: tokenizer=..., or give ids")
    batches = text_windows(opened, data, config).split(config.batch or WINDOWS_PER_PASS)
    return batches, masked_batches(opened, batches, config.bos) if losses and not opened.causal else batches


def text_windows(opened: Opened, data: str, config: ProbeConfig) -> Tensor:
    """(windows, context) of running text: the held-out part first; the rest at the end is dropped, unless it is all of
    the text. DataError for no token at all."""
    source = open_source(data, config.field)
    ids: list[int] = []
    for document in chain(source.documents("validation"), source.documents("train")):
        ids.extend(opened.encode(document))
        if len(ids) >= config.tokens:
            break
    del ids[config.tokens :]
    if len(ids) < 2:
        raise DataError("the text is empty: nothing to probe")
    context = min(config.context, opened.context or config.context, config.tokens) - config.bos
    rows = max(1, len(ids) // context)
    windows = torch.tensor(ids[: rows * context]).view(rows, -1)
    return F.pad(windows, (1, 0), value=opened.begin_id) if config.bos else windows


def masked_batches(opened: Opened, batches: Sequence[Tensor], bos: bool) -> list[Inputs]:
    """The batches with masked tokens and their labels. bos: windows begin with the token that begins a text, which is
    never masked."""
    objective, front, number = opened.objective(), int(bos), 0
    name = "" if isinstance(opened, OpenedRun) else "input_ids"
    masked: list[Inputs] = []
    for ids in batches:
        windows = torch.cat((ids[:, front:], ids[:, :1]), 1).numpy()  # objectives read one token after a window
        inputs, labels = objective.pairs(windows, [number + row for row in range(len(ids))], HELD_OUT_SEED)
        inputs, labels = torch.cat((ids[:, :front], inputs), 1), F.pad(labels, (front, 0), value=IGNORED)
        masked.append({name: inputs, "labels": labels})
        number += len(ids)
    return masked
