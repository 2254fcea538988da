"""OLMo-core's model under our schemes trains as ours does; runs where OLMo-core is installed."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm import Decoder
from geonorm.models import preset

with warnings.catch_warnings(action="ignore"):
    pytest.importorskip("olmo_core.nn.transformer", reason="pip install ai2-olmo-core")
    SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "scheme_in_olmo_core.py"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["pre", "geonorm", "geonorm(entry=embedding, input=norm)", "peri", "lns"])
def test_losses_are_ours(scheme: str) -> None:
    torch.manual_seed(0)
    ours = Decoder(preset("nano", scheme=scheme, layers=2, width=64, heads=2, hidden=192, vocab_size=256)).double()
    theirs = SCRIPT["same_model"](ours).double()
    batches = [torch.randint(256, (4, 33)) for _ in range(10)]

    def train(model: Any, loss_of: Any) -> list[float]:
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
        for batch in batches:
            loss = loss_of(batch[:, :-1], batch[:, 1:].contiguous())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train(ours, ours.loss)
    assert train(theirs, lambda ids, labels: theirs(ids, labels=labels).loss) == pytest.approx(expected, abs=2e-5)
    assert expected[-1] != pytest.approx(expected[0], abs=1e-2)
