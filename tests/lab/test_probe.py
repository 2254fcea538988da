"""geonorm probe: what is written, what is refused, and the measures that need a whole model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import geonorm
from geonorm.cli import main as cli
from geonorm.errors import ConfigError, DataError
from geonorm.lab import probe as lab, probe_inputs as reading
from geonorm.lab.data.batches import MaskedTokens
from geonorm.measure.anatomy import Stack
from geonorm.measure.subject import Subject, ablation, measure_gradients

from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]
EVERY = "llama gemma2 olmo2 gpt2 gpt_neox gptj gpt_neo opt opt-post phi bert t5".split()
WORDS = "the quick brown fox jumps over the lazy dog\n" * 40


def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(vocab=letters, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: a Llama of 3 blocks that reads bytes, in two shards."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "tiny"
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(path, max_shard_size="40KB")
    tokenizer().save_pretrained(path)
    (path.parent / "text.txt").write_text(WORDS, encoding="utf-8")
    return path


def command(*words: object) -> int:
    return cli.main(["probe", *map(str, words)])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_directory_is_probed_and_the_page_made_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    text = folder.parent / "text.txt"
    assert command(folder, "--data", text, "--tokens", 400, "--context", 50, "--gradients", "--ablate-blocks",
                   "--out", out) == 0  # fmt: skip
    assert "harmonic" in (shown := capsys.readouterr().out) or "implied step law" in shown
    rows = read(out / "trace.jsonl")
    assert [(r["layer"], r["kind"], r["t"]) for r in rows] == [
        (n, kind, n + 1) for n in range(3) for kind in ("attn", "mlp")
    ]
    assert {row["tokens"] for row in rows} == {400} and {row["scheme"] for row in rows} == {"pre"}
    assert all(row["grad_norm"] > 0 and row["rotation"] > 0 for row in rows)
    assert all(("grad_w2" in row) == (row["kind"] == "mlp") for row in rows)
    schema = set("""scheme layer kind t radius radius_cv step_norm radial tangential ratio ratio_p99 angle off_plane
        update_norm cos_ones angle_ones cos_null rotation cos_pair grad_norm radius_after""".split())  # fmt: skip
    assert all(schema <= set(row) for row in rows)
    assert len(read(out / "norms.jsonl")) == 7
    ablated = read(out / "ablation.jsonl")
    assert [(r["first"], r["last"]) for r in ablated] == [(0, 0), (1, 1), (2, 2)]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["kind"] == "probe" and summary["models"][0]["tokens"] == 400
    assert set(summary["models"][0]["schedule"]["decoder"]) == {"attn", "mlp", "all"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('<svg class="chart"') == 22 and "<table>" in page
    assert cli.main(["report", str(out), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


@each("words", ["missing", "model", "empty", "tokenizer", "quantised", "pickled", "type", "plain", "out"])
def test_wrong_input_is_one_line_and_writes_nothing(
    words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, text, out = tmp_path / "model", folder.parent / "text.txt", tmp_path / "out"
    broken.mkdir()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    copied = [f for f in folder.iterdir() if f.name != "config.json"]
    message = {
        "missing": "there is no run and no model folder", "model": "nor a config.json", "empty": "text",
        "tokenizer": "no tokenizer in",
        "quantised": "quantised weights (bitsandbytes)", "pickled": "no safetensors weights",
        "type": "unknown model type 'mpt'", "plain": "no residual site", "out": "holds no probe",
    }[words]  # fmt: skip
    arguments = [broken, "--data", text, "--out", out, "--tokens", 100, "--context", 20]
    if words == "missing":
        arguments[0] = tmp_path / "nowhere"
    elif words == "empty":
        arguments[0], arguments[2] = folder, tmp_path / "empty.txt"
        (tmp_path / "empty.txt").write_text("")
    elif words == "tokenizer":
        copied = [f for f in copied if "token" not in f.name]
    elif words == "quantised":
        config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    elif words == "pickled":
        copied = [f for f in copied if "safetensors" not in f.name]
        (broken / "pytorch_model.bin").write_bytes(b"not read")
    elif words == "type":
        config = {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 1, "vocab_size": 256}
        transformers = pytest.importorskip("transformers")
        transformers.MptForCausalLM(transformers.MptConfig(**config)).save_pretrained(broken)
        copied = [f for f in copied if "token" in f.name]
        config = json.loads((broken / "config.json").read_text(encoding="utf-8"))
    elif words == "plain":
        arguments += ["--blocks", "model.nowhere", "--sublayers", "attn:branch=attn"]
    elif words == "out":
        arguments[0] = folder
        out.mkdir()
        (out / "precious").write_text("mine")
    if words != "model":
        (broken / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for file in copied:
            (broken / file.name).write_bytes(file.read_bytes())
    capsys.readouterr()
    assert command(*arguments) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.strip().splitlines()) == 1, err
    assert not out.exists() or [f.name for f in out.iterdir()] == ["precious"]


def test_a_probe_leaves_another_probe_as_it_is(folder: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    words = [folder, "--data", folder.parent / "text.txt", "--out", out, "--context", 20, "--tokens"]
    assert command(*words, 100) == 0 and command(*words, 100, "--batch", 1) == 0
    before = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    capsys.readouterr()
    assert command(*words, 60) == 2
    assert "holds a probe with tokens 100, not 60; choose another --out" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("measure", ["--gradients", "--ablate-blocks"])
def test_what_is_measured_on_the_first_batches_is_another_probe_in_another_batch(
    measure: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    words = [folder, "--data", folder.parent / "text.txt", "--out", tmp_path / "out", "--context", 20, "--tokens", 100]
    assert command(*words, measure, "--batch", 2) == 0 and command(*words, measure, "--batch", 2) == 0
    before = (tmp_path / "out" / "trace.jsonl").read_bytes()
    capsys.readouterr()
    assert command(*words, measure, "--batch", 1) == 2
    assert "holds a probe with batch 2, not 1; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "out" / "trace.jsonl").read_bytes() == before


@each("case", ["llama", "gptj", "t5", "gpt_neox"])
def test_gradients_are_those_of_the_loss(case: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(case)
    subject = Subject(model)
    rows = list(measure_gradients(subject, inputs).values())
    assert len(rows) == len(subject.capture.sites)
    assert all(p.grad is None for p in model.parameters())
    chains, row = list(subject.capture.sites)[-1].chains, rows[-1]
    weight = [p for chain in chains for m in chain for p in m.parameters() if p.dim() == 2][-1]
    subject.loss(inputs).backward()
    gradient = weight.grad.clone()
    model.zero_grad(set_to_none=True)
    if "grad_w2" in row:
        assert row["grad_w2"] == pytest.approx(gradient.norm().item(), rel=1e-5)
        assert row["grad_norm"] ** 2 >= row["grad_w1"] ** 2 + row["grad_w2"] ** 2 - 1e-9
    assert row["grad_norm"] >= gradient.norm().item() * (1 - 1e-6)


@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe"])
def test_gradients_of_a_mixture_are_those_of_its_experts(case: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(case)
    *_, row = measure_gradients(Subject(model), inputs).values()
    experts = model.model.layers[-1].mlp.experts
    Subject(model).loss(inputs).backward()
    for name, weight in (("grad_w1", experts.gate_up_proj), ("grad_w2", experts.down_proj)):
        assert row[name] == pytest.approx(weight.grad.norm().item(), rel=1e-5) and row[name] > 0


@each("case", ["llama", "gpt_neo", "t5"])
def test_a_block_left_out_is_a_model_without_it(case: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(case)
    subject = Subject(model)
    whole, rows = ablation(subject, [inputs])
    assert whole == pytest.approx(subject.loss(inputs).item())
    stack, blocks = subject.blocks()[-1]
    row = next(r for r in rows if r["stack"] == stack and (r["first"], r["last"]) == (1, 1))
    assert row["increase"] == pytest.approx(row["loss"] - whole) and row["distance"] == pytest.approx(
        row["angle"] / torch.pi
    )
    out = model(**inputs, output_hidden_states=True)
    states = out.decoder_hidden_states if case == "t5" else out.hidden_states
    if len(blocks) > 2:
        turn = torch.nn.functional.cosine_similarity(states[1].double(), states[2].double(), dim=-1).acos().mean()
        assert row["angle"] == pytest.approx(turn.item(), rel=1e-4)
    if case == "t5":
        return
    without = copy.deepcopy(model)
    found, base = Subject(without).capture.stacks[0]
    del without.get_submodule(f"{base}.{found.blocks}")[1]
    without.config.num_hidden_layers = len(blocks) - 1
    logits = without(**inputs, use_cache=False).logits[:, :-1].flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, inputs["input_ids"][:, 1:].flatten())
    assert row["loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_python(tiny_model: Tiny, folder: Path) -> None:
    model, inputs = tiny_model("llama")
    found = geonorm.probe(model, inputs["input_ids"])
    assert repr(found).startswith("Probe(") and len(repr(found)) < 200  # what a notebook prints
    assert found.tokens == 18 and len(found.sites) == 6 and found.about["model_type"] == "llama"
    again = geonorm.probe(model, {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])})
    assert again.sites == found.sites
    named = geonorm.probe(str(folder), str(folder.parent / "text.txt"), tokens=128, context=32)
    assert named.tokens == 128 and named.name == str(folder)
    pictures = geonorm.probe(*tiny_model("vit"))
    assert pictures.sites[0]["stack"] == "encoder"
    by_hand = Stack.by_hand("layers", ["attn:norm=input_layernorm,branch=self_attn"])
    assert len(geonorm.probe(model, inputs["input_ids"], stacks=[by_hand]).sites) == 3
    with pytest.raises(ConfigError, match="tokenizer="):
        geonorm.probe(model, "stdlib")
    with pytest.raises(ConfigError, match="no data"):
        geonorm.probe(model, [])
    with pytest.raises(ConfigError, match="predicts the next token: this one is ViTModel"):
        geonorm.probe(*tiny_model("vit"), gradients=True)
    with pytest.raises(DataError, match="the tokenizer gives ids up to"):
        geonorm.probe(model, str(folder.parent / "text.txt"), tokenizer=tokenizer())


def test_the_second_half_is_that_of_each_stack() -> None:
    """Three blocks and two, each worth what its number says: those that count are the last of three and of two."""
    worth = {"encoder": [1, 2, 4], "decoder": [1, 8]}
    rows = [
        {"stack": stack, "first": first, "blocks": 1, "increase": float(increase)}
        for stack, increases in worth.items()
        for first, increase in enumerate(increases)
    ]
    assert lab.Probe("m", 1, 0.0, ablation=rows).summary()["second_half_share"] == (4 + 8) / 16


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


def test_tokens_given_as_arguments_are_those_of_both_stacks(tiny_model: Tiny) -> None:
    subject, ids, mask = Subject(tiny_model("t5")[0]), torch.ones(2, 6).long(), torch.ones(2, 6).long()
    mask[0, :2] = 0
    assert subject.count({"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :4]}) == 10 + 8
    assert subject.count({"input_ids": ids, "decoder_input_ids": ids, "decoder_attention_mask": mask}) == 12 + 10
    assert subject.count({"inputs_embeds": torch.ones(2, 6, 32), "attention_mask": mask}) == 10


def test_labels_tell_models_apart() -> None:
    assert lab.short_names(["a/x", "b/y"]) == ["x", "y"]
    assert lab.short_names(["a/x", "b/x", "c/z"]) == ["a/x", "b/x", "z"]


def test_one_model_twice_is_refused(folder: Path, tmp_path: Path, capsys: Any) -> None:
    """Also under another path; nothing is written."""
    again = folder.parent / "." / folder.name / ".." / folder.name
    assert command(folder, again, "--data", folder.parent / "text.txt", "--out", tmp_path / "out") == 2
    assert "once more: name each model once" in capsys.readouterr().err and not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="name each model once"):
        lab.check_different(["gpt2", "gpt2"])
    lab.check_different(["gpt2", "a/gpt2"])


def test_windows_begin_with_the_token_that_begins_a_text(folder: Path, tmp_path: Path) -> None:
    """Each window has it once, in the place of one token; a tokenizer without one is refused in a line."""
    ids = reading.text(str(folder.parent / "text.txt"), lambda t: list(t.encode()), 100, 10, 256, begin=255)
    plain = reading.text(str(folder.parent / "text.txt"), lambda t: list(t.encode()), 100, 9, 256)
    assert torch.equal(ids[:, 1:], plain) and bool((ids[:, 0] == 255).all()) and ids.shape == (11, 10)
    with pytest.raises(ConfigError, match=r"no token that begins a text: leave out --bos"):
        geonorm.probe(str(folder), str(folder.parent / "text.txt"), tokens=64, context=32, bos=True)
    marked = tokenizer()
    marked.add_special_tokens({"bos_token": "a"})
    assert reading.beginning(marked, "m") == marked.bos_token_id


def test_the_beginning_of_a_text_is_never_masked() -> None:
    opened: Any = SimpleNamespace(causal=False, objective=lambda: MaskedTokens(1, 2, 50))
    text = torch.randint(3, 50, (40, 12), generator=torch.Generator().manual_seed(0))
    begun = torch.cat((torch.zeros(40, 1).long(), text), 1)
    (plain,), (found,) = reading.ask_masked(opened, [text]), reading.ask_masked(opened, [begun], bos=True)
    assert (found["input_ids"][:, 0] == 0).all() and (found["labels"][:, 0] == -100).all()
    assert all(torch.equal(found[name][:, 1:], plain[name]) for name in ("input_ids", "labels"))


@pytest.mark.parametrize("bos", [False, True])
def test_a_sink_that_only_the_beginning_of_a_text_shows(folder: Path, bos: bool) -> None:
    """The token that begins a text is 100 times as long as the rest and takes all attention; windows that begin
    anywhere in a text do not have it."""
    marked = tokenizer()
    marked.add_special_tokens({"bos_token": "<s>"})
    torch.manual_seed(0)
    shape = geonorm.DecoderConfig(
        "pre(entry=embedding)", layers=2, width=32, heads=4, vocab_size=257, context=16, positions="none",
        bias=True,
    )  # fmt: skip
    model = geonorm.Decoder(shape)
    sign = torch.nn.functional.one_hot(torch.tensor(0), 32).float()
    with torch.no_grad():
        model.embed.weight[:, 0] = 0
        model.embed.weight.div_(model.embed.weight.norm(dim=-1, keepdim=True))
        model.embed.weight[marked.bos_token_id] = 100 * sign
        attention = model.blocks[0].attn.branch
        for weight in (attention.q.weight, attention.k.weight):
            weight.zero_()
        attention.k.weight[:, 0] = 60.0
        attention.q.bias.fill_(1.0)
    data = str(folder.parent / "text.txt")
    found = geonorm.probe(model, data, tokenizer=marked, tokens=128, context=16, bos=bos)
    row = found.sites[0]
    assert row["radius"] == pytest.approx(1 + 99 / 16 if bos else 1, rel=1e-4)
    assert row["attn_first"] == pytest.approx(1 if bos else row["attn_first_null"], rel=1e-4)
    assert (row["top_dim"] == 0) == bos


def test_a_probe_with_its_layers(folder: Path, tmp_path: Path) -> None:
    """What is new on disk, in the summary and on the page."""
    words = [folder, "--data", folder.parent / "text.txt", "--tokens", 256, "--context", 32, "--out", tmp_path / "out"]
    assert command(*words) == 0
    layers = read(tmp_path / "out" / "layers.jsonl")
    assert [(row["first"], row["second"]) for row in layers] == [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
    (model,) = json.loads((tmp_path / "out" / "summary.json").read_text())["models"]
    assert model["norm_spread"] is None  # gains are 1: behind each norm all lengths are one
    page = (tmp_path / "out" / "report.html").read_text()
    for title in ("The first token", "Likeness of depths"):
        assert title in page
    assert "Tokens at the ceiling" not in page  # it has none


@each("scheme", ["mix(post, geonorm, share=0.5)", "mix(pre, post, share=0.25)", "geonorm(decay=sqrt)"])
def test_a_model_has_the_name_of_its_own_scheme(scheme: str) -> None:
    """Not that of its first site."""
    shape = geonorm.DecoderConfig(scheme=scheme, layers=2, width=16, heads=2, hidden=16, vocab_size=32)
    found = geonorm.probe(geonorm.Decoder(shape), torch.randint(0, 32, (2, 8)))
    assert found.about["scheme"] == str(geonorm.parse(scheme))


def test_gradients_of_a_model_with_places_that_never_run() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=16, add_cross_attention=True, is_decoder=True
    )
    found = geonorm.probe(transformers.GPT2LMHeadModel(config), torch.randint(0, 32, (1, 8)), gradients=True)
    assert len(found.sites) == 4 and all(row["grad_norm"] > 0 for row in found.sites)
