"""The mean-variance split is its equation, and trains where tokens see both sides."""

import json
import runpy
from pathlib import Path

import torch

from geonorm import Residual, Site
from geonorm.cli.main import main

FILE = Path(__file__).parents[2] / "examples" / "mean_split.py"
MeanSplit = runpy.run_path(str(FILE))["MeanSplit"]


def test_it_is_its_equation_gradients_too() -> None:
    """Written another way: parts of the mean and parts around it, each by itself."""
    layer = Residual(torch.nn.Linear(6, 6), MeanSplit(), Site(1, "mlp", 4), dim=6).double()
    a, b = (torch.nn.init.normal_(layer.own.get_parameter(name)) for name in "ab")
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    u = layer.branch(torch.nn.functional.rms_norm(x, (6,), layer.own.get_submodule("input").weight, 1e-6))
    mean, around = (1 - a) * x.mean(1)[:, None] + a * u.mean(1)[:, None], x - x.mean(1)[:, None]
    expected = mean + around + b * (u - u.mean(1)[:, None])
    inputs = [x, *layer.parameters()]
    weight = torch.randn(2, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-14)
    found, wanted = (torch.autograd.grad((y * weight).sum(), inputs) for y in (layer(x), expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


def test_it_trains_where_tokens_see_both_sides(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("tokens that become alike are one token. " * 400)
    shape = (
        "--model.layers 2 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 --model.vocab_size 258"
    )
    words = f"train --objective mlm --trust-code --steps 4 --batch_size 4 --tokens.tokenizer byte {shape}".split()
    assert not main(
        [*words, "--scheme", f"{FILE}:MeanSplit", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run")]
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
