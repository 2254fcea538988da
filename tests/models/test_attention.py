"""Attention: rotary positions, windows, dropout; what a token sees, decoding, what is counted, what is random."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import grad

from geonorm.models.attention import attend_in_blocks, document_masks, rope, rotate, seen_keys

from ..rows import each
from .tiny import decoder, ids


def test_a_token_sees_itself_and_those_before_it() -> None:
    mask = seen_keys(2, 5, 3, torch.device("cpu"))
    assert mask.tolist() == [[False, True, True, True, False], [False, False, True, True, True]]
    assert seen_keys(2, 3, None, torch.device("cpu")).tolist() == [[True, True, False], [True, True, True]]


@torch.no_grad()
@pytest.mark.parametrize(("every", "reach"), [(None, 2 * 3), (2, 11)])
def test_how_far_a_change_is_felt(every: int | None, reach: int) -> None:
    """Two blocks with windows of 4: six tokens on; where the second has none, to the end."""
    model, sequence = decoder(scheme="pre", window=4, full_every=every).eval(), ids(batch=1)
    changed = sequence.clone()
    changed[0, 0] += 1
    felt = (model(sequence) - model(changed)).abs().amax(-1)[0] > 1e-6
    assert felt.tolist() == [place <= reach for place in range(12)]


def test_dropout_is_for_training_and_follows_the_seed() -> None:
    model, plain, sequence = decoder(attn_dropout=0.3), decoder(), ids()
    assert torch.equal(model.eval()(sequence), plain(sequence))
    model.train()
    torch.manual_seed(1)
    first, second = model(sequence), model(sequence)
    torch.manual_seed(1)
    assert torch.equal(model(sequence), first) and not torch.allclose(first, second)
    assert not torch.allclose(first, plain(sequence))


def test_a_turn_keeps_lengths_and_its_gradient_turns_back() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    table = tuple(part.double() for part in rope(torch.arange(5), 8, 100.0))
    turned = rotate(x, (table[0], table[1]))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    (back,) = torch.autograd.grad(turned, x, turned.detach())
    torch.testing.assert_close(back, x.detach(), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(rotate(x, (table[0], table[1])), turned)


def test_a_graph_of_any_length() -> None:
    """Whether attention is causal is no symbol of a length that varies: such a graph is exported, and is the model's
    at another length, where compilation of the second length that it sees broke the graph."""
    model = decoder(scheme="geonorm", layers=1).eval()
    length = torch.export.Dim("length", min=2, max=16)
    exported = torch.export.export(model, (ids(tokens=8),), dynamic_shapes=({1: length},), strict=False).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(ids(tokens=5)), model(ids(tokens=5)), rtol=1e-5, atol=1e-5)


END = 7
DOCUMENTS: list[dict[str, Any]] = [
    {"scheme": "pre", "positions": "learned", "embed_norm": True},
    {"scheme": "geonorm", "window": 3, "full_every": 2, "kv_heads": 2},
    {"scheme": "geonorm(update=norm)", "block": "parallel", "values": "token", "attn_gate": True},
    {"scheme": "ngpt", "values": "first", "positions": "none"},
]


def packed() -> tuple[Tensor, list[tuple[int, slice]]]:
    """Two rows of documents, which END begins, and where each lies; the first of a row has lost its beginning."""
    rows = ids(2, 13).where(ids(2, 13) != END, END + 1)
    rows[0, [4, 5, 9]] = rows[1, [0, 7]] = END
    cuts = [(0, (0, 4, 5, 9, 12)), (1, (0, 7, 12))]
    return rows, [(row, slice(*ends)) for row, places in cuts for ends in pairwise(places)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
@each("fields", DOCUMENTS)
@each("backend", ["auto", "reference"])
def test_documents_of_a_row_are_as_if_alone(fields: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and gradients, eager and compiled, but for the rounding of rotations in fp32."""
    monkeypatch.setenv("GEONORM_BACKEND", backend)
    model, (rows, places) = decoder(document_end=END, **fields).double(), packed()
    alone = [(rows[row : row + 1, part], rows[row, part.start + 1 : part.stop + 1]) for row, part in places]
    logits = torch.cat([model(document)[0] for document, _ in alone])
    torch.testing.assert_close(model(rows[:, :-1]).flatten(0, 1), logits, **(close := {"rtol": 1e-5, "atol": 1e-6}))
    wanted = grad(sum(model.loss(text, after[None], "sum") for text, after in alone), weights := [*model.parameters()])
    for block in model.blocks if backend == "reference" else ():
        block.compile(backend="aot_eager")
    found = grad(model.loss(rows[:, :-1], rows[:, 1:], "sum"), weights)
    torch.testing.assert_close(found, wanted, **close)
    plain = decoder(**fields).double()
    assert not torch.allclose(plain(rows[:, :-1]).flatten(0, 1), logits, atol=1e-3)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_masks_for_a_gpu_hide_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention, which on a CPU has no backward pass."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    rows, q = packed()[0], torch.randn(2, 4, 13, 16, dtype=torch.float64)
    for window in (None, 3):
        dense, blocks = (document_masks(rows, END, {window}, kind)[window] for kind in (False, True))
        expected = F.scaled_dot_product_attention(q, q, q, attn_mask=dense)
        torch.testing.assert_close(attend_in_blocks(q, q, q, blocks), expected)
