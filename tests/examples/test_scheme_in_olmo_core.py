"""OLMo-core's model under our schemes trains as ours does; runs where OLMo-core is installed."""

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm import Decoder
from geonorm.models import preset

with warnings.catch_warnings(action="ignore"):
    olmo = pytest.importorskip("olmo_core.nn.transformer", reason="pip install ai2-olmo-core")
    SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "scheme_in_olmo_core.py"))

NAMES = {
    "embed.": "embeddings.", "head.": "lm_head.w_out.", "entry.": "embedding_norm.", "exit.": "lm_head.norm.",
    ".attn.": ".attention_residual_stream.", ".mlp.": ".feed_forward_residual_stream.", ".branch.q.": ".branch.w_q.",
    ".branch.k.": ".branch.w_k.", ".branch.v.": ".branch.w_v.", ".branch.o.": ".branch.w_out.",
    ".branch.gate.": ".branch.w1.", ".branch.up.": ".branch.w3.", ".branch.down.": ".branch.w2.",
}  # fmt: skip
"""Of weights: in our models and in OLMo-core's."""


def same_model(ours: Decoder) -> Any:
    """One of our decoders, of preset nano's kind, as a model of OLMo-core with the same weights."""
    c = ours.config
    model = olmo.TransformerConfig.llama_like(
        d_model=c.width, vocab_size=c.vocab_size, n_layers=c.layers, n_heads=c.heads, rope_theta=c.rope_theta,
        hidden_size_multiple_of=c.hidden, layer_norm_eps=c.eps,
    ).build()  # fmt: skip
    SCRIPT["set_scheme"](model, c.scheme, c.eps)
    weights = {}
    for name, tensor in ours.state_dict().items():
        for here, there in NAMES.items():
            name = name.replace(here, there)
        weights[name] = tensor.clone()
    model.load_state_dict(weights)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["pre", "geonorm", "geonorm(entry=embedding, input=norm)", "peri", "lns"])
def test_losses_are_ours(scheme: str) -> None:
    torch.manual_seed(0)
    ours = Decoder(preset("nano", scheme=scheme, layers=2, width=64, heads=2, hidden=192, vocab_size=256)).double()
    theirs = same_model(ours).double()
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
