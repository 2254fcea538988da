"""An encoder-decoder's run as a folder: ours, alone with its modeling file, as T5; what is done with such folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.cli.main import main
from geonorm.errors import ConfigError
from geonorm.lab.data import NO_TEXT, load_tokenizer
from geonorm.lab.open import open_model, open_run
from geonorm.nn import preset
from geonorm.nn.encoder_decoder import EncoderDecoder

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from geonorm import hf  # noqa: E402
from geonorm.hf.encoder_decoder import adapt_both  # noqa: E402
from geonorm.hf.export import fast_tokenizer  # noqa: E402

from .conftest import train_run  # noqa: E402
from .fresh import WITHOUT, python  # noqa: E402

ALONE = (
    WITHOUT
    + """
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[2], trust_remote_code=True).eval()
ids = torch.arange(2, 20).view(2, 9)
written = model.generate(ids, max_new_tokens=4, do_sample=False)
torch.save((model(input_ids=ids, decoder_input_ids=ids[:, 3:]).logits, written), sys.argv[1])
AutoModel.from_pretrained(sys.argv[2], trust_remote_code=True)
AutoTokenizer.from_pretrained(sys.argv[2], trust_remote_code=True)
"""
)
PROMPT = "the cat <extra_id_0> on the mat"
IDS = torch.arange(2, 20).view(2, 9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of T5's layout."""
    words = "--objective denoise --preset nano-t5 --lr 0.02 --model.context 32".split()
    return train_run(tmp_path_factory.mktemp("run"), *words, "--scheme", "pre(entry=embedding)")


@pytest.fixture(scope="module")
def folder(run: Path) -> Path:
    assert main(["export", str(run), "--to", str(run.parent / "model"), "--remote-code"]) == 0
    return run.parent / "model"


@pytest.fixture(scope="module")
def t5(run: Path) -> Path:
    assert main(["export", str(run), "--to", str(run.parent / "t5"), "--layout", "stock"]) == 0
    return run.parent / "t5"


def test_the_folder_is_the_run(run: Path, folder: Path, tmp_path: Path) -> None:
    """Equal logits to the last bit here and, with its modeling file, where the package is not."""
    wanted = open_run(run).model(IDS, IDS[:, 3:])
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(model) is hf.GeoNormForConditionalGeneration
    assert torch.equal(model(input_ids=IDS, decoder_input_ids=IDS[:, 3:]).logits, wanted)
    python(ALONE, tmp_path / "found", folder)
    logits, written = torch.load(tmp_path / "found")
    assert torch.equal(logits, wanted)
    assert torch.equal(written, model.generate(IDS, max_new_tokens=4, do_sample=False))
    assert set(json.loads((folder / "config.json").read_text())["auto_map"]) == {
        "AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"
    }  # fmt: skip
    card = (folder / "README.md").read_text()
    assert "AutoModelForSeq2SeqLM.from_pretrained(" in card and "2 layers of an encoder in front" in card
    assert "pipeline_tag: text-generation" in card and "import geonorm" not in card


def test_its_tokenizer_reads_marks_and_closes_texts(run: Path, folder: Path) -> None:
    ours, theirs = open_run(run), transformers.AutoTokenizer.from_pretrained(folder)
    before, behind = (ours.encode(part) for part in PROMPT.split("<extra_id_0>"))
    mark, end = ours.tokenizer.sentinels[0], ours.tokenizer.eos
    assert theirs(PROMPT).input_ids == [*before, mark, *behind, end]
    assert theirs(PROMPT, add_special_tokens=False).input_ids == [*before, mark, *behind]
    batch = theirs(["the cat", "the cat number 7 sat on"], return_tensors="pt", padding=True)
    assert not batch.attention_mask[0, -1] and batch.attention_mask[:, 0].all(), "padded behind the text"
    settings = transformers.GenerationConfig.from_pretrained(folder)
    assert settings.decoder_start_token_id == settings.eos_token_id == end
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    found = model.generate(**{k: batch[k] for k in ("input_ids", "attention_mask")}, max_new_tokens=3)
    alone = model.generate(theirs("the cat", return_tensors="pt").input_ids, max_new_tokens=3)
    assert found[0, : alone.shape[1]].tolist() == alone[0].tolist() and found[0, 0] == end


def test_what_a_tokenizer_puts_around_texts_gives_way_to_the_end() -> None:
    for around in (
        None,
        {"single": "<|endoftext|> $A <extra_id_0>", "special_tokens": [("<|endoftext|>", 256), ("<extra_id_0>", 257)]},
    ):
        byte = load_tokenizer("byte", NO_TEXT, 263, sentinels=6)
        raw = tokenizers.Tokenizer.from_str(byte.json)
        if around is not None:
            raw.post_processor = tokenizers.processors.TemplateProcessing(**around)
        theirs = fast_tokenizer(raw.to_str(), byte.eos, 32, sentinels=byte.sentinels)
        ids = [97, 32, 258, 32, 98, 256]
        assert theirs("a <extra_id_1> b").input_ids == ids and theirs.decode(ids) == "a <extra_id_1> b<|endoftext|>"


def test_as_t5(run: Path, t5: Path) -> None:
    config = json.loads((t5 / "config.json").read_text())
    assert config["model_type"] == "t5" and "import geonorm" not in (t5 / "README.md").read_text()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(t5).eval()
    wanted = open_run(run).model(IDS, IDS[:, 3:])
    torch.testing.assert_close(model(input_ids=IDS, decoder_input_ids=IDS[:, 3:]).logits, wanted, rtol=1e-4, atol=1e-5)


def test_an_answer_begins_with_the_token_that_the_folder_names(t5: Path, tmp_path: Path) -> None:
    """Published T5s begin with padding, ours with the end token."""
    shutil.copytree(t5, tmp_path / "t5")
    config = json.loads((t5 / "config.json").read_text()) | {"decoder_start_token_id": 7}
    (tmp_path / "t5" / "config.json").write_text(json.dumps(config))
    opened = open_model(str(tmp_path / "t5"), torch.device("cpu"))
    given, targets = torch.arange(20).view(2, 10), torch.zeros(2, 4, dtype=torch.long)
    parts = opened.split(given, targets)
    assert parts["input_ids"].tolist() == [[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]
    assert parts["decoder_input_ids"].tolist() == [[7, 7, 8, 9], [7, 17, 18, 19]]
    assert given[0, 6] == 6  # what was given stays as it was


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("entry", ["pre", "pre(entry=embedding)"])
def test_what_is_t5_and_what_is_not(entry: str, tied: bool, tmp_path: Path) -> None:
    size = {"layers": 1, "encoder_layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 31, "context": 16}

    def build(**changes: Any) -> Any:
        torch.manual_seed(0)
        model = EncoderDecoder(preset("nano-t5", **{**size, "scheme": entry, "tied": tied, **changes})).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() < 2 or "relative" in name:
                    parameter += 0.2 * torch.rand(parameter.shape)
        return model, adapt_both(model, eos_token_id=1, decoder_start_token_id=1, pad_token_id=1)

    if tied and entry == "pre":
        with pytest.raises(ConfigError, match="normalises the embedding, so the head must have weights of its own"):
            hf.to_stock(build()[1])
        return
    own, ours = build(qk_scale=1.3)
    hf.to_stock(ours).save_pretrained(tmp_path)
    theirs, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()) and not theirs.config.scale_decoder_outputs
    assert (theirs.lm_head.weight is theirs.shared.weight) == tied
    ids = torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(1))
    out = theirs(input_ids=ids, decoder_input_ids=ids[:, 4:]).logits
    torch.testing.assert_close(out, own(ids, ids[:, 4:]), rtol=1e-4, atol=1e-5)
    for changes, message in (
        ({"scheme": "geonorm", "tied": False}, "geonorm is not t5, which is pre"),
        ({"mlp": "swiglu", "bias": True}, r"t5 has no equal for model.mlp=swiglu \(only geglu\); model.bias=True"),
        ({"kv_heads": 1}, "model.kv_heads=1"),
    ):
        with pytest.raises(ConfigError, match=message):
            hf.to_stock(build(**changes)[1])
    with pytest.raises(ConfigError, match="llama is no encoder-decoder: use --layout geonorm, or t5"):
        hf.to_stock(ours, "llama")


def test_folders_are_evaluated_probed_and_written_with_as_the_run(
    run: Path, folder: Path, t5: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    other = tmp_path / "other.txt"
    other.write_text("the mat sat on the cat, and 16 residual streams saw it.\n" * 60)
    evaluated, written = [], []
    models = [str(path) for path in (run, folder, t5)]
    for model in models:
        capfd.readouterr()
        assert main(["eval", model, "--data", str(other)]) == 0
        evaluated.append(json.loads(capfd.readouterr().out))
        assert main(["generate", model, "--prompt", PROMPT, "--temperature", "0", "--tokens", "6"]) == 0
        written.append(capfd.readouterr().out)
    assert evaluated[1]["model_type"] == "geonorm_encoder_decoder"
    for found in evaluated[1:]:
        for name in ("tokens", "bytes", "part", "data_sha256"):
            assert found[name] == evaluated[0][name]
        for name in ("loss", "accuracy", "span_loss", "span_accuracy", "bits_per_byte"):
            assert found[name] == pytest.approx(evaluated[0][name], rel=1e-4), name
    assert written[0] == written[1] == written[2] and written[0].startswith("the cat ")
    out = tmp_path / "probe"
    words = ["probe", *models, "--data", str(other), "--tokens", "128", "--context", "32", "--ablate-blocks"]
    assert main([*words, "--out", str(out)]) == 0
    for name, columns in (("trace.jsonl", ("ratio", "angle")), ("ablation.jsonl", ("loss", "angle"))):
        rows: list[list[Any]] = [[], [], []]
        for line in (out / name).read_text().splitlines():
            row = json.loads(line)
            rows[["out", "model", "t5"].index(row["model"])].append(row)
        places = [[(row["stack"], row.get("kind"), row.get("layer"), row.get("first")) for row in one] for one in rows]
        assert places[0] == places[1] == places[2] and {place[0] for place in places[0]} == {"encoder", "decoder"}
        for column in columns:
            wanted = [row[column] for row in rows[0]]
            assert [row[column] for row in rows[1]] == pytest.approx(wanted, rel=1e-4)
            assert [row[column] for row in rows[2]] == pytest.approx(wanted, rel=1e-3)


def test_what_is_refused(run: Path, t5: Path, tmp_path: Path, capsys: Any) -> None:
    for words, said in (
        (["generate", str(t5), "--prompt", "the cat"], "mark 1 to"),
        (["export", str(run), "--to", str(tmp_path / "a"), "--layout", "llama"], "llama is no encoder-decoder"),
        (["export", str(run), "--to", str(tmp_path / "a"), "--layout", "t5", "--remote-code"], "without --remote-code"),
    ):
        assert main(words) == 2
        out = capsys.readouterr()
        assert said in out.err and len(out.err.splitlines()) == 1 and not out.out
    assert not (tmp_path / "a").exists()
