"""`geonorm convert`: what a run and a model of transformers become, what it costs, how it is stopped and undone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from geonorm import report
from geonorm.cli.arguments import read
from geonorm.cli.main import main
from geonorm.lab.convert import convert as work
from geonorm.lab.convert.config import ConvertConfig
from geonorm.lab.convert.convert import asked, asked_besides
from geonorm.lab.data.tokenizer import BYTE_JSON
from geonorm.lab.open import open_model, open_run
from geonorm.report.comparison import _repeat_run
from geonorm.report.runs import Run, load

pytest.importorskip("transformers")

QUICK = ["--runtime.tensorboard", "false", "--evaluation.tokens", 1024, "--evaluation.trace_tokens", 0]
SHAPE = (
    "--model.layers 2 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 --model.vocab_size 257 "
    "--tokens.tokenizer byte --runtime.device cpu --scheme pre(entry=embedding)"
).split()
TOKENS = 16 * 4 * 10
"""Ten steps."""


@pytest.fixture(scope="module")
def source(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run under Pre-Norm of 40 steps: it has learned a little."""
    out = tmp_path_factory.mktemp("source") / "pre"
    assert main([*map(str, ["train", *SHAPE, *QUICK, "--data", text, "--steps", 40, "--out", out])]) == 0
    return out


@pytest.fixture
def convert(call: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """geonorm convert MODEL --to geonorm, ten steps, without drawing."""
    monkeypatch.setattr(report, "build", lambda dirs, out: out)

    def run(model: Path, out: Path, *options: Any) -> Any:
        given = {str(word) for word in options}
        base = ["--to", "geonorm", "--tokens", TOKENS, *QUICK]
        pairs = zip(base[::2], base[1::2], strict=True)
        return call("convert", model, *(w for pair in pairs if pair[0] not in given for w in pair), "--out", out,
                    *options)  # fmt: skip

    return run


def about(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_page_repeats_the_conversion(tmp_path: Path) -> None:
    """All of its settings but the folder, read back from the words that are shown."""
    config = ConvertConfig("my model", "geonorm(decay=sqrt)", 1000, distill=0.5, course="layers", lr=1e-4)
    summary: dict[str, Any] = {"scheme": "geonorm", "conversion": {"settings": asked(config)}}
    program, verb, *words = _repeat_run(Run(tmp_path, summary, {}, "", [], [], [], 0))
    assert (program, verb) == ("geonorm", "convert") and read(ConvertConfig, "", words) == replace(config, out="NEW")
    config = replace(config, runtime=replace(config.runtime, dtype="bf16", accumulate=2, tensorboard=False))
    summary["conversion"] = {"settings": asked(config), "besides": asked_besides(config)}
    _, _, *words = _repeat_run(Run(tmp_path, summary, {}, "", [], [], [], 0))
    assert read(ConvertConfig, "", words) == replace(config, out="NEW")


def test_what_the_source_was_trained_on_is_not_unseen(
    source: Path, convert: Any, call: Any, text: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text(text.read_text()[::-1])
    assert convert(source, tmp_path / "out", "--data", other).status == 0
    assert call("export", tmp_path / "out", "--to", tmp_path / "folder").status == 0
    for model in (source, tmp_path / "out", tmp_path / "folder"):
        assert json.loads(call("eval", model, "--data", text).out)["part"] == "held-out"
    assert [json.loads(call("eval", model, "--data", other).out)["part"] for model in (source, tmp_path / "out")] == [
        "all", "held-out",
    ]  # fmt: skip


def state(run: Path, kind: str) -> dict[str, torch.Tensor]:
    (newest,) = (run / "checkpoints").glob("step-*") if kind == "only" else sorted((run / "checkpoints").glob("*"))[-1:]
    return {**load_file(newest / "model.safetensors"), **load_file(newest / "optimizer.safetensors")}


def test_the_gradual_way_begins_with_the_loss_that_was(source: Path, convert: Any, call: Any, tmp_path: Path) -> None:
    before, out = contents(source), tmp_path / "out"
    done = convert(source, out, "--course", "layers")
    assert done.status == 0, done.err
    found = about(out)
    conversion = found["conversion"]
    assert conversion["loss_at_start"] == conversion["loss_before"] and conversion["tokens"] == TOKENS
    model = open_run(out).model
    assert found["parameters"] == model.parameter_count()  # on its way it had the norms of the source too
    assert found["matmul_parameters"] == model.matmul_parameter_count()
    assert found["scheme"] == "geonorm" and found["steps"] == 10 and conversion["source"] == "pre(entry=embedding)"
    assert f"loss {conversion['loss_before']:.4f} before" in done.out and "to undo, remove" in done.out
    answer = json.loads(call("eval", out, "--data", open_run(out).config.data).out)
    assert answer["scheme"] == "geonorm" and answer["loss"] == pytest.approx(found["val_loss"], abs=1e-6)
    assert call("generate", out, "--tokens", 3).status == 0
    assert call("export", out, "--to", tmp_path / "folder").status == 0
    assert contents(source) == before and not (out / "way").exists()
    again = convert(source, out, "--course", "layers")
    assert again.status == 0 and "is already finished" in again.out


def test_the_optimizer_goes_on_from_where_it_was(source: Path, convert: Any, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", "--way", "abrupt", "--lr", 0).status == 0
    (old,), (new,) = ((run / "checkpoints").glob("step-[14]0") for run in (source, tmp_path / "out"))
    states = [load_file(folder / "optimizer.safetensors") for folder in (old, new)]
    names = [name for name in states[1] if name.endswith(".step")]
    assert names and all(states[0][name] == 40 and states[1][name] == 50 for name in names)
    weights = [load_file(folder / "model.safetensors") for folder in (old, new)]
    assert not any(".input." in name for name in weights[1])  # geonorm reads the stream as it is
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1] if "layer" not in name)


def test_the_rate_falls_to_a_tenth_whatever_the_source_did(convert: Any, call: Any, text: Path, tmp_path: Path) -> None:
    base = ["train", *SHAPE, *QUICK, "--data", text, "--optim.schedule", "wsd", "--optim.floor", 0]
    assert call(*base, "--steps", 4, "--out", tmp_path / "wsd").status == 0
    assert convert(tmp_path / "wsd", tmp_path / "out", "--lr", 1e-2).status == 0
    rates = [json.loads(line)["lr"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert rates[-1] == pytest.approx(1e-3)


def test_stopped_and_resumed_it_is_the_same(source: Path, convert: Any, after: Any, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert convert(source, whole).status == 0
    with after(4):
        stopped = convert(source, parts)
    assert stopped.status == 130 and stopped.err.endswith("the same command goes on from there\n")
    other = convert(source, parts, "--distill", 0.5)
    assert other.status == 2 and "holds a conversion with distill 0.0, not 0.5; choose another --out" in other.err
    resumed = convert(source, parts)
    assert resumed.status == 0 and "at step 4 of 10" in resumed.out
    assert all(torch.equal(a, b) for a, b in zip(state(whole, "only").values(), state(parts, "only").values(),
                                                 strict=True))  # fmt: skip
    assert about(whole)["conversion"]["loss_after"] == about(parts)["conversion"]["loss_after"]


def test_resumed_it_learns_from_the_checkpoint_that_it_began_with(
    convert: Any, call: Any, text: Path, after: Any, tmp_path: Path
) -> None:
    """The source has trained on since, or is another run by now; without --distill that is no matter."""
    base = ["train", *SHAPE, *QUICK, "--data", text, "--optim.schedule", "constant", "--checkpoint.every", 6]
    source, whole, parts = (tmp_path / name for name in ("source", "whole", "parts"))
    assert call(*base, "--steps", 6, "--out", source).status == 0
    assert convert(source, whole, "--distill", 1).status == 0
    for out, distill in ((parts, 1), (tmp_path / "gone", 1), (tmp_path / "alone", 0)):
        with after(4):
            assert convert(source, out, "--distill", distill).status == 130
    assert call(*base, "--steps", 12, "--out", source).status == 0
    resumed = convert(source, parts, "--distill", 1)
    assert resumed.status == 0 and "at step 4 of 10" in resumed.out
    assert result(parts) == result(whole) and about(parts)["conversion"]["checkpoint"]["step"] == 6
    (source / "checkpoints" / "step-6").rename(tmp_path / "step-6")
    for other in (False, True):
        if other:
            assert call(*base, "--steps", 6, "--seed", 1, "--out", tmp_path / "other").status == 0
            (tmp_path / "other" / "checkpoints" / "step-6").rename(source / "checkpoints" / "step-6")
        refused = convert(source, tmp_path / "gone", "--distill", 1)
        assert refused.status == 2 and "no longer has the checkpoint of step 6 that this" in refused.err
        assert len(refused.err.splitlines()) == 1
    assert convert(source, tmp_path / "alone", "--distill", 0).status == 0
    assert about(tmp_path / "alone")["conversion"]["checkpoint"] == about(whole)["conversion"]["checkpoint"]


def test_norms_that_are_held_are_those_it_begins_with(
    convert: Any, call: Any, text: Path, after: Any, tmp_path: Path
) -> None:
    """Not those of drawn weights, before a stop and behind it."""

    def norms(run: Path) -> list[float]:
        return [w.norm().item() for role, w, _, _ in open_run(run).model.weights() if role in ("o", "down")]

    held, out = tmp_path / "held", tmp_path / "out"
    base = ["train", *SHAPE, *QUICK, "--data", text, "--optim.hold_norms", "o", "down"]
    assert call(*base, "--steps", 4, "--out", held, "--seed", 1).status == 0
    begun, options = norms(held), ["--way", "abrupt", "--lr", 0.05, "--evaluation.average", 0.5]
    with after(4):
        assert convert(held, out, *options).status == 130
    assert norms(out / "way") == pytest.approx(begun, rel=1e-5)
    resumed = convert(held, out, *options)
    assert resumed.status == 0 and "at step 4 of 10" in resumed.out
    assert norms(out) == pytest.approx(begun, rel=1e-5)
    assert convert(held, tmp_path / "whole", *options).status == 0  # averaged weights have those norms, too
    assert about(tmp_path / "whole")["val_loss_average"] == about(out)["val_loss_average"]


def test_killed_while_the_result_is_written_it_is_written_anew(
    source: Path, convert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(work, "write_json", killed)
        assert convert(source, tmp_path / "out").status == 130
    assert not (tmp_path / "out" / "summary.json").exists()
    assert convert(source, tmp_path / "out").status == 0
    assert about(tmp_path / "out")["conversion"]["loss_after"] == pytest.approx(about(tmp_path / "out")["val_loss"])
    assert open_run(tmp_path / "out").model.config.scheme == "geonorm"


@pytest.fixture
def struck(convert: Any, ranks: Any) -> Any:
    """struck(signal, where, model, out): what geonorm convert says that the signal meets there, in its own process."""

    def run(name: str, where: str, model: Path, out: Path, *options: Any) -> Any:
        command = ("convert", model, "--to", "geonorm", "--tokens", TOKENS, *QUICK, *options, "--out", out)
        return ranks("struck", 1, name, where, *map(str, command)).wait()[0]

    return run


EVERY = ["--checkpoint.every", 3]


def result(out: Path) -> tuple[Any, ...]:
    """What must be the same, bit for bit."""
    found = about(out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    tensors = {str(file.relative_to(out)): load_file(file) for file in sorted(out.rglob("*.safetensors"))}
    bits = {(name, key): tensor.numpy().tobytes() for name, file in tensors.items() for key, tensor in file.items()}
    return bits, [(row["step"], row["loss"]) for row in rows], found["val_loss"], found["conversion"]


@pytest.fixture(scope="module")
def wanted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The result of a conversion that nothing met."""
    out = tmp_path_factory.mktemp("whole") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "build", lambda dirs, out: out)
        words = ["convert", source, "--to", "geonorm", "--tokens", TOKENS, *QUICK, *EVERY, "--out", out]
        assert main([str(word) for word in words]) == 0
    return result(out)


def test_killed_anywhere_it_goes_on_to_the_same_result(
    source: Path, wanted: Any, convert: Any, struck: Any, tmp_path: Path
) -> None:
    """In the middle a save of step 6 is there at the most, of step 3 at the least."""
    for where in ("beginning", "step", "summary", "removal"):
        out = tmp_path / where
        assert struck("SIGKILL", where, source, out, *EVERY).status == -9
        assert (out / "summary.json").exists() == (where == "removal")
        done = convert(source, out, *EVERY)
        assert done.status == 0 and ("at step" in done.out) == (where == "step"), (where, done)
        assert result(out) == wanted and not (out / "way").exists(), where


def test_interrupted_before_its_first_step_and_behind_its_last_it_goes_on(
    source: Path, wanted: Any, convert: Any, struck: Any, tmp_path: Path
) -> None:
    for where in ("beginning", "removal"):
        stopped = struck("SIGINT", where, source, tmp_path / where, *EVERY)
        assert stopped.status == 130 and len(stopped.err.splitlines()) == 1, (where, stopped)
        assert convert(source, tmp_path / where, *EVERY).status == 0
        assert result(tmp_path / where) == wanted and not (tmp_path / where / "way").exists(), where


def test_only_distilled_it_begins_with_no_loss(source: Path, convert: Any, tmp_path: Path) -> None:
    """At the first step the model on the gradual way is the one that it learns from."""
    assert convert(source, tmp_path / "out", "--distill", 1).status == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert abs(rows[0]["loss"]) < 1e-6 < rows[1]["loss"] < 1
    assert about(tmp_path / "out")["conversion"]["loss_after"] > 1  # that of the text


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A tiny random Llama on the disk, as a stranger has it."""
    import transformers
    from tokenizers import Tokenizer

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=257,
        max_position_embeddings=16, bos_token_id=256, eos_token_id=256, attention_dropout=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    end = "<|endoftext|>"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(BYTE_JSON), eos_token=end)
    tokenizer.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.mark.parametrize("way", ["gradual", "match"])
def test_a_llama_from_the_disk(
    way: str, llama: Path, convert: Any, call: Any, text: Path, after: Any, tmp_path: Path
) -> None:
    out, options = tmp_path / "out", ["--data", text, "--way", way, "--lr", 1e-2]
    before = contents(llama)
    with after(6):
        assert convert(llama, out, *options).status == 130
    done = convert(llama, out, *options)
    assert done.status == 0 and "at step 6 of 10" in done.out, done.err
    assert f"pre(entry=embedding) to geonorm, {way}: " in done.out and "nano" not in done.out
    conversion = about(out)["conversion"]
    assert (conversion["loss_at_start"] == conversion["loss_before"]) == (way == "gradual")
    assert conversion["loss_after"] < conversion["loss_before"] and contents(llama) == before
    assert json.loads((out / "config.json").read_text())["scheme"] == "geonorm"
    model = open_model(str(out), torch.device("cpu")).model
    assert about(out)["parameters"] == sum(p.numel() for p in model.parameters())
    saved = load(out)
    assert (saved.depth, saved.data) == (2, text.name)
    answer = json.loads(call("eval", out, "--data", text, "--tokens", 100).out)
    assert answer["scheme"] == "geonorm" and answer["loss"] < conversion["loss_before"]
    assert answer["part"] == "held-out"  # of the text that it was converted on
    rates = [json.loads(line)["lr"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rates[0] < 1e-2 and rates == sorted(rates, reverse=True)  # 5 % of ten steps are no step of warm-up
    assert call("generate", out, "--prompt", "the", "--tokens", 3).status == 0


def test_a_llama_that_is_killed(llama: Path, convert: Any, struck: Any, text: Path, tmp_path: Path) -> None:
    options, whole, parts = ["--data", text, *EVERY], tmp_path / "whole", tmp_path / "parts"
    assert convert(llama, whole, *options).status == 0
    assert struck("SIGKILL", "step", llama, parts, *options).status == -9
    done = convert(llama, parts, *options)
    assert done.status == 0 and "at step" in done.out and result(parts) == result(whole)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "geonrom"], "unknown scheme 'geonrom': did you mean 'geonorm'?"),
        (["--to", "hyper"], "no gradual way leads from pre(entry=embedding) (one stream) to hyper"),
        (["--to", "ngpt"], "it constrains weights"),
        (["--to", "prores", "--way", "abrupt"], "is for models trained from the start: its steps begin at 0"),
        (["--to", "mix(pre, prores)", "--way", "match"], "is for models trained from the start: its steps begin at 0"),
        (["--way", "sudden"], "--way takes gradual or match or abrupt, got 'sudden'"),
        (["--tokens", 0], "tokens must be at least 1"),
        (["--share", 0], "share must be between 1e-06 and 1, got 0"),
        (["--share", 0.2, "--way", "match"], "--share is of the gradual way: leave it out with --way match"),
        (["--course", "layers", "--way", "abrupt"], "--course is of the gradual way"),
        (["--data", "nowhere.txt"], "no file, folder or corpus 'nowhere.txt'"),
        (["--context", 8], "--context is for Hugging Face models"),
        (["--evaluation.tasks", "copa"], "convert asks no tasks"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    options: list[Any], said: str, source: Path, convert: Any, tmp_path: Path
) -> None:
    refused = convert(source, tmp_path / "out", *options)
    assert refused.status == 2 and said in refused.err and len(refused.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_torchrun_is_refused(source: Path, convert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank would write the result, and a loss of one's own is not averaged over them. A world of one is refused
    like any other, and waits for nobody where it is not."""
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    refused = convert(source, tmp_path / "out")
    assert refused.status == 2 and "convert runs on one rank: start it without torchrun" in refused.err
    assert len(refused.err.splitlines()) == 1 and not (tmp_path / "out").exists()


def test_models_that_do_not_fit_are_one_line(
    source: Path, llama: Path, convert: Any, train: Any, text: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "post", "--scheme", "post", "--steps", 1).status == 0
    assert "is not Pre-Norm but post" in convert(tmp_path / "post", tmp_path / "out").err
    assert "there is no run and no model folder" in convert(Path("./nowhere"), tmp_path / "out").err
    assert "--data is missing" in convert(llama, tmp_path / "out").err
    fresh = convert(llama, tmp_path / "out", "--data", text, "--to", "prores", "--way", "abrupt")
    assert fresh.status == 2 and "is for models trained from the start" in fresh.err
    assert not (tmp_path / "out").exists()
    used = convert(source, source)
    assert used.status == 2 and "is not empty and holds no conversion; choose another --out" in used.err
    content = json.loads((llama / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 257, "content": "<more>"})
    (llama / "tokenizer.json").write_text(json.dumps(content))
    strange = convert(llama, tmp_path / "out", "--data", text)
    assert strange.status == 2 and "has 258 ids, its model 257: they do not belong together" in strange.err
    assert not (tmp_path / "out").exists()
