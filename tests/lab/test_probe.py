"""geonorm probe: its files, its refusals, and what it reads."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import geonorm
from geonorm.cli import main as cli
from geonorm.errors import ConfigError
from geonorm.lab import probe as lab, probe_inputs
from geonorm.lab.data.batches import MaskedTokens
from geonorm.lab.open import Opened
from geonorm.measure.config import ProbeConfig

from ..conftest import Tiny
from ..rows import each
from .conftest import rows as read


def tokenizer(**special: str) -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(vocab=letters, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **special)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: a Llama of 3 blocks that reads bytes; a text beside it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(path, max_shard_size="40KB")
    tokenizer().save_pretrained(path)
    (path.parent / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40, encoding="utf-8")
    return path


def command(*words: object) -> int:
    return cli.main(["probe", *map(str, words)])


def test_a_directory_is_probed_and_the_page_made_again(folder: Path, tmp_path: Path, capsys: Any) -> None:
    out, text = tmp_path / "out", folder.parent / "text.txt"
    words = [folder, "--data", text, "--context", 50, "--gradients", "--ablate-blocks", "--out", out, "--tokens"]
    assert command(*words, 400) == 0 and "implied step law" in capsys.readouterr().out
    rows = read(out / "trace.jsonl")
    assert [(r["layer"], r["kind"], r["t"]) for r in rows] == [
        (n, kind, n + 1) for n in range(3) for kind in ("attn", "mlp")
    ]
    assert {row["tokens"] for row in rows} == {400} and {row["scheme"] for row in rows} == {"pre(entry=embedding)"}
    assert all(row["grad_norm"] > 0 and row["rotation"] > 0 for row in rows)
    assert all(("grad_w2" in row) == (row["kind"] == "mlp") for row in rows)
    schema = set("""scheme layer kind t radius radius_cv step_norm radial tangential ratio ratio_p99 angle off_plane
        update_norm cos_ones angle_ones cos_null rotation cos_pair grad_norm radius_after""".split())  # fmt: skip
    assert all(schema <= set(row) for row in rows)
    assert len(read(out / "norms.jsonl")) == 7
    assert [(r["first"], r["last"]) for r in read(out / "ablation.jsonl")] == [(0, 0), (1, 1), (2, 2)]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    (model,) = summary["models"]
    assert summary["kind"] == "probe" and model["tokens"] == 400 and model["norm_spread"] is None  # gains are 1
    assert set(model["schedule"]["decoder"]) == {"attn", "mlp", "all"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('<svg class="chart"') > 9 and "<table>" in page
    assert cli.main(["report", str(out), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page
    before = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert command(*words, 60) == 2
    assert "holds a probe with tokens 400, not 60; choose another --out" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_python(tiny_model: Tiny, folder: Path) -> None:
    model, inputs = tiny_model("llama")
    ids, text = inputs["input_ids"], str(folder.parent / "text.txt")
    result = geonorm.probe(model, ids)
    assert repr(result).startswith("ProbeResult(") and len(repr(result)) < 200  # what a notebook prints
    assert result.tokens == 18 and len(result.sites) == 6 and result.about["model_type"] == "llama"
    again = geonorm.probe(model, [{**inputs, "attention_mask": torch.ones_like(ids)}])
    assert again.sites == result.sites
    named = geonorm.probe(str(folder), text, tokens=128, context=32)
    assert named.tokens == 128 and named.name == str(folder)
    assert geonorm.probe(*tiny_model("vit")).sites[0]["stack"] == "encoder"
    norms_alone = geonorm.probe(model, ids, sites=False)
    assert norms_alone.norms and not norms_alone.sites and norms_alone.tokens == 18
    padding: Any = {"input_ids": ids, "attention_mask": torch.zeros_like(ids)}
    for data, message in (
        ("stdlib", "tokenizer="),
        ([], "no data"),
        (padding, "no token is counted"),
        (None, "data is text, a tensor of ids"),
        ([[1, 2, 3]], "data is text, a tensor of ids"),
    ):
        with pytest.raises(ConfigError, match=message):
            geonorm.probe(model, data)
    with pytest.raises(ConfigError, match="not NoneType"):
        geonorm.probe(None, ids)  # type: ignore[arg-type]


def test_the_second_half_is_that_of_each_stack() -> None:
    """Three blocks and two, each worth what its number says: those that count are the last of three and of two."""
    worth = {"encoder": [1, 2, 4], "decoder": [1, 8]}
    rows = [
        {"stack": stack, "first": first, "blocks": 1, "increase": float(increase)}
        for stack, increases in worth.items()
        for first, increase in enumerate(increases)
    ]
    assert lab.ProbeResult("m", 1, 0.0, ablation=rows).summary()["second_half_share"] == (4 + 8) / 16


def test_blocks_are_left_out_on_the_first_batches_alone(tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = list[int]()
    monkeypatch.setattr(lab, "ablation", lambda probed, batches, report: (lengths.append(len(batches)), []))
    monkeypatch.setattr(lab, "ABLATION_TOKENS", 30)
    model, inputs = tiny_model("llama")
    geonorm.probe(model, [inputs["input_ids"]] * 5, ablate_blocks=True)  # of 18 tokens each
    assert lengths == [2]


def test_our_own_run(train: Any, text: Path, tmp_path: Path, capsys: Any) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert train(run, "--scheme", "geonorm", "--model.layers", 3, "--steps", 2).status == 0
    for words in (["--dtype", "bfloat16"], ["--tokenizer", "gpt2"], ["--revision", "v1"]):
        assert command(run, "--data", text, *words, "--out", out) == 2
        assert f"{words[0]} is for models of transformers" in capsys.readouterr().err
    assert command(run, "--data", text, "--tokens", 256, "--gradients", "--ablate-blocks", "--out", out) == 0
    rows = read(out / "trace.jsonl")
    assert len(rows) == 6 and {row["scheme"] for row in rows} == {"geonorm"}
    assert all(row["radius_after"] == pytest.approx(row["radius"], rel=1e-5) and row["grad_norm"] > 0 for row in rows)
    assert len(read(out / "ablation.jsonl")) == 3


def test_a_diverged_model_is_probed_and_the_place_is_named(tmp_path: Path) -> None:
    model = geonorm.Decoder(geonorm.DecoderConfig("pre", layers=3, width=16, heads=2, vocab_size=32, context=8))
    model.blocks[1].mlp.branch.down.weight.data[0, 0] = torch.nan
    result = geonorm.probe(model, torch.randint(0, 32, (2, 8)), ablate_blocks=True, gradients=True)
    assert result.not_finite == "decoder layer 1 mlp" and "not finite from decoder layer 1 mlp" in repr(result)
    assert result.sites[3]["radius"] > 0 and result.sites[4]["radius"] is None
    assert json.loads(json.dumps(result.files(), allow_nan=False))["summary.json"]["models"][0]["loss"] is None


def test_windows_begin_with_the_token_that_begins_a_text(folder: Path) -> None:
    """Each window has it once, in the place of one token. The model's context is the longest window."""
    text = str(folder.parent / "text.txt")
    marked = Opened("m", None, tokenizer(bos_token="a"), 10, torch.device("cpu"))
    ids = probe_inputs.text_windows(marked, text, ProbeConfig(["m"], tokens=100, context=512, bos=True))
    plain = probe_inputs.text_windows(marked, text, ProbeConfig(["m"], tokens=100, context=9))
    assert ids.shape == (11, 10) and torch.equal(ids[:, 1:], plain)
    assert bool((ids[:, 0] == marked.tokenizer.bos_token_id).all())


def test_the_beginning_of_a_text_is_never_masked() -> None:
    opened: Any = SimpleNamespace(causal=False, objective=lambda: MaskedTokens(1, 2, 50))
    text = torch.randint(3, 50, (40, 12), generator=torch.Generator().manual_seed(0))
    begun = torch.cat((torch.zeros(40, 1).long(), text), 1)
    (plain,), (masked,) = (
        probe_inputs.masked_batches(opened, [ids], bos) for ids, bos in ((text, False), (begun, True))
    )
    assert (masked["input_ids"][:, 0] == 0).all() and (masked["labels"][:, 0] == -100).all()
    assert all(torch.equal(masked[name][:, 1:], plain[name]) for name in ("input_ids", "labels"))
    parts = [part["labels"] for part in probe_inputs.masked_batches(opened, text.split(7), False)]
    assert torch.equal(torch.cat(parts), plain["labels"])


@each("scheme", ["mix(post, geonorm, share=0.5)", "mix(pre, post, share=0.25)", "geonorm(decay=sqrt)"])
def test_a_model_has_the_name_of_its_own_scheme(scheme: str) -> None:
    shape = geonorm.DecoderConfig(scheme=scheme, layers=2, width=16, heads=2, hidden=16, vocab_size=32)
    result = geonorm.probe(geonorm.Decoder(shape), torch.randint(0, 32, (2, 8)))
    assert result.about["scheme"] == str(geonorm.parse(scheme))


def test_gradients_of_a_model_with_sub_layers_that_never_run() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=16, add_cross_attention=True, is_decoder=True
    )
    result = geonorm.probe(transformers.GPT2LMHeadModel(config), torch.randint(0, 32, (1, 8)), gradients=True)
    assert len(result.sites) == 4 and all(row["grad_norm"] > 0 for row in result.sites)


@each("kind, said", [("vit", "no tokenizer in"), ("t5", "is an encoder-decoder: this needs")])
def test_models_of_other_kinds(kind: str, said: str, tiny_model: Tiny, call: Any, tmp_path: Path) -> None:
    """None of them writes or has a loss on text; an encoder-decoder is probed, images are in Python alone."""
    tiny_model(kind)[0].save_pretrained(folder := tmp_path / kind)
    words = [["eval", folder, "--data", "stdlib"], ["generate", folder]]
    for command_line in words if kind == "t5" else [*words, ["probe", folder, "--out", tmp_path / "out"]]:
        result = call(*command_line)
        assert result.status == 2 and said in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
