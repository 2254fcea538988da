"""What is done with a run: evaluation on any text, generation, TensorBoard files."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from geonorm.errors import ConfigError
from geonorm.lab.data import open_source
from geonorm.lab.evaluate import evaluate as use, generate
from geonorm.lab.open import open_run

from ...rows import each


@pytest.fixture
def run(train: Any, tmp_path: Path, text: Path) -> Path:
    """A finished run whose training text is gone."""
    copy = tmp_path / "copy.txt"
    copy.write_text(text.read_text())
    assert train(tmp_path / "run", "--steps", 3, "--data", copy, "--evaluation.tokens", 10**6).status == 0
    copy.unlink()
    return tmp_path / "run"


def by_hand(run: Path, path: Path) -> tuple[float, int]:
    """Sum of nats and number of targets in windows of 16, an end of document after each of the text's two parts."""
    model, source = open_run(run).model, open_source(str(path))
    ids = [i for split in ("train", "validation") for doc in source.documents(split) for i in [*doc.encode(), 256]]
    windows = torch.tensor(ids[: (len(ids) - 1) // 16 * 16 + 1]).unfold(0, 17, 16)
    with torch.no_grad():
        logits = model(windows[:, :-1]).flatten(0, 1)
    return F.cross_entropy(logits, windows[:, 1:].flatten(), reduction="sum").item(), windows[:, 1:].numel()


def test_any_text_is_evaluated_whole(run: Path, call: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    content = "Spheres keep their radius, and é is two bytes.\n" * 20
    other.write_text(content)
    result = call("eval", run, "--data", other, "--out", tmp_path / "out")
    assert result.status == 0, result.err
    answer = json.loads(result.out)
    assert answer == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert answer["part"] == "all" and answer["tokens"] >= len(content.encode()) - 16
    nats, count = by_hand(run, other)
    assert answer["loss"] == pytest.approx(nats / count, abs=1e-6)
    assert answer["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert use.with_perplexity({"val_loss": 800.0, "tokens": 1, "bytes": 1})["perplexity"] is None
    assert answer["bits_per_byte"] == pytest.approx(nats / math.log(2) / answer["bytes"], abs=1e-6)
    assert answer["bytes"] < answer["tokens"] == count  # the end of a document is a token without bytes
    assert json.loads(call("eval", run, "--data", other, "--tokens", 100).out)["tokens"] == 96
    (records := tmp_path / "other.jsonl").write_text(json.dumps({"content": content}))
    assert json.loads(call("eval", run, "--data", records, "--field", "content").out)["part"] == "all"


def test_own_text_is_read_on_its_held_out_part(run: Path, train: Any, call: Any, text: Path, tmp_path: Path) -> None:
    answer = json.loads(call("eval", run, "--data", text).out)
    summary = json.loads((run / "summary.json").read_text())
    assert answer["part"] == "held-out" and answer["loss"] == pytest.approx(summary["val_loss"], abs=1e-12)
    assert answer["bits_per_byte"] == pytest.approx(summary["val_bpb"], abs=1e-12)
    (folder := tmp_path / "corpus").mkdir()  # a text with a split of its own
    (folder / "train.txt").write_text("nothing of this counts\n" * 50)
    (folder / "validation.txt").write_text(text.read_text()[:1000])
    answer = json.loads(call("eval", run, "--data", folder).out)
    assert answer["part"] == "held-out" and answer["tokens"] == 992
    lines = (json.dumps({"text": line}) + "\n" for line in text.read_text().splitlines())
    (many := tmp_path / "many.jsonl").write_text("".join(lines))
    for name, data, options in (("mixture", f"{text} + {many}", []), ("part", many, ["--tokens.limit", 3000])):
        assert train(tmp_path / name, *options, "--data", data, "--steps", 1).status == 0
        assert json.loads(call("eval", tmp_path / name, "--data", data).out)["part"] == "held-out"


@pytest.mark.parametrize("layout", ["geonorm", "gpt2"])
def test_an_export_is_evaluated_and_writes_as_its_run(
    layout: str, train: Any, call: Any, text: Path, tmp_path: Path
) -> None:
    """It knows the text of its run, and draws the same tokens; its end of a text may have any name."""
    pytest.importorskip("transformers")
    run, folder = tmp_path / "run", tmp_path / "folder"
    gpt2 = ["--scheme", "pre(entry=embedding)", "--preset", "nano-gpt2"]
    assert train(run, "--steps", 2, *(gpt2 if layout == "gpt2" else [])).status == 0
    assert call("export", run, "--to", folder, "--layout", layout).status == 0
    (other := tmp_path / "other.txt").write_text(text.read_text()[:3000])
    for data, part in ((text, "held-out"), (other, "all")):
        ours, theirs = (json.loads(call("eval", name, "--data", data).out) for name in (run, folder))
        assert ours["part"] == theirs["part"] == part and theirs["bytes"] == ours["bytes"]
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-6)
    for options in (["--temperature", 0], ["--seed", 3], ["--top-k", "null", "--temperature", 1.5]):
        texts = [call("generate", name, "--prompt", "the cat", "--tokens", 8, *options).out for name in (run, folder)]
        assert texts[0] == texts[1] and texts[0].startswith("the cat")
    assert call("generate", folder, "--tokens", 4).status == 0  # begins a new text
    too_long = call("generate", folder, "--prompt", "the cat " * 9, "--tokens", 200)
    assert too_long.status == (2 if layout == "gpt2" else 0)
    assert ("more than the context of this model: " in too_long.err) == (layout == "gpt2")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            (folder / name).write_text((folder / name).read_text().replace("<|endoftext|>", "<fin>"))
    assert json.loads(call("eval", folder, "--data", other).out)["loss"] == theirs["loss"]


def test_a_tokenizer_that_begins_texts_begins_windows() -> None:
    """Where the tokenizer puts a token before every text, the model sees it before every window, unscored."""
    windows = []

    def model(ids: torch.Tensor, use_cache: bool) -> Any:
        windows.append(ids.tolist())
        return SimpleNamespace(logits=F.one_hot(ids + 1, 9).float() * 50)

    model.config = SimpleNamespace(architectures=["LlamaForCausalLM"])  # type: ignore[attr-defined]
    ids = torch.tensor([[2, 3, 4]])
    for begin in (7, None):
        assert use.Scorer(model, begin).loss(ids, ids + 1, reduction="sum").item() == pytest.approx(0.0, abs=1e-6)
    assert windows == [[[7, 2, 3, 4]], [[2, 3, 4]]]


def test_generation(run: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(*options: Any) -> str:
        result = call("generate", run, *options)
        assert result.status == 0, result.err
        return str(result.out)

    once, again, other = (text("--prompt", "the cat", "--tokens", 30, "--seed", seed) for seed in (1, 1, 2))
    assert once.startswith("the cat") and len(once.encode()) > 7 and once == again != other
    greedy = [text("--prompt", "the cat", "--temperature", 0, "--seed", seed) for seed in (1, 2)]
    assert greedy[0] == greedy[1]
    assert len(text("--tokens", 5)) > 2 and len(text("--prompt", "", "--tokens", 5, "--top_k", "null")) > 2
    assert text("--prompt=--é\n", "--tokens", 40).startswith("--é\n")  # longer than the context of 16
    monkeypatch.setattr(generate, "generate", lambda model, *more: iter([torch.tensor(256)]))
    assert text("--prompt", "ends at once") == "ends at once\n"


def test_a_folder_of_something_else_is_not_written(run: Path, call: Any, text: Path, tmp_path: Path) -> None:
    for _ in range(2):  # its own folder is written again
        assert call("eval", run, "--data", text, "--out", tmp_path / "out").status == 0
    before = (run / "summary.json").read_bytes()
    result = call("eval", run, "--data", text, "--out", run)
    assert result.status == 2 and "holds no evaluation" in result.err and len(result.err.splitlines()) == 1
    assert (run / "summary.json").read_bytes() == before


def test_tensorboard_reads_every_step_once(train: Any, after: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    options = ["--steps", 8, "--checkpoint.every", 2, "--evaluation.every", 4, "--runtime.tensorboard", "true"]

    def crash() -> None:
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"), after(5, crash):
        train(run, *options)
    assert train(run, *options).status == 0
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    metrics = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "val_loss", *events.Tags()["scalars"]} == set().union(*metrics) - {"step", "tokens"}
    for name, wanted in (("loss", range(1, 9)), ("val_loss", (4, 8))):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == list(wanted)
        for step, value in found:
            assert value == pytest.approx(metrics[step - 1][name], rel=1e-6)


def test_the_folder_of_a_comparison(
    run: Path, call: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opens the finished final run of a scheme whose validation loss is lowest, or names its runs."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "all" / "runs"
    first, *others = (runs / name for name in ("geonorm-a", "geonorm-b", "geonorm-c-tune", "pre-d"))
    shutil.copytree(run, first)
    (tmp_path / "all" / "config.yaml").write_text("schemes: [geonorm, pre]\n")
    summary = {**json.loads((run / "summary.json").read_text()), "sha256": None}
    changes = ({"val_loss": 1.0}, {"val_loss": 0.5, "phase": "tune"}, {"scheme": "pre", "status": "diverged"})
    for folder, change in zip(others, changes, strict=True):
        shutil.copytree(run, folder)
        (folder / "summary.json").write_text(json.dumps({**summary, **change}))
    folder, best = tmp_path / "all", others[0]
    answer = json.loads(call("eval", folder, "--scheme", "geonorm()", "--data", text).out)
    assert answer == {**json.loads(call("eval", best, "--data", text).out), "run": str(best)}
    made = [call("generate", name, "--tokens", 5).out for name in (f"{folder}", best)]
    assert made[0] == "" and call("generate", folder, "--tokens", 5, "--scheme", "geonorm").out == made[1] != ""
    assert call("probe", folder, "--scheme", "geonorm", "--data", text, "--tokens", 64, "--out", "found").status == 0
    assert json.loads(Path("found/summary.json").read_text())["models"][0]["model"] == best.name
    assert call("export", folder, "--scheme", "geonorm", "--to", "model").status == 0
    names = "geonorm-a, geonorm-b, geonorm-c-tune, pre-d"
    for words in (["eval", "--data", text], ["generate"], ["probe", "--out", "out"], ["export", "--to", "out"]):
        for scheme, said in (
            ([], f"give --scheme for the best run of a scheme, or one in {runs}: {names}"),
            (["--scheme", "pre"], f"no run of pre has finished in {folder} (finished schemes: geonorm)"),
            (["--scheme", "geonrom"], "did you mean 'geonorm'?"),
        ):
            result = call(words[0], folder, *words[1:], *scheme)
            assert result.status == 2 and said in result.err and len(result.err.splitlines()) == 1, result.err
    result = call("generate", best, "--scheme", "geonorm")
    assert result.status == 2 and "--scheme is for the folder of a comparison" in result.err
    assert not Path("out").exists()


@each("first, longest", [(None, 32), (5, 31)])
def test_a_window_leaves_room_for_the_token_before_it(first: int | None, longest: int) -> None:
    def tokenize(text: str) -> Any:
        return SimpleNamespace(input_ids=[7, 8] if first is None else [first, 7])

    tokenize.bos_token_id, tokenize.cls_token_id = 5, None  # type: ignore[attr-defined]
    opened: Any = SimpleNamespace(name="m", context=32, tokenizer=tokenize)
    assert use.first_token(opened) == first
    assert use.window(opened, None) == use.window(opened, longest) == longest
    with pytest.raises(ConfigError, match=f"its context is {longest}"):
        use.window(opened, longest + 1)


def test_a_tokenizer_with_more_ids_than_its_model(train: Any, call: Any, text: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run, folder = tmp_path / "run", tmp_path / "folder"
    assert train(run, "--steps", 2, "--scheme", "pre(entry=embedding)").status == 0
    assert call("export", run, "--to", folder, "--layout", "stock").status == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(100)
    model.save_pretrained(folder)
    for command in (["eval", folder, "--data", text], ["generate", folder, "--prompt", "the cat", "--tokens", 2]):
        found = call(*command)
        assert found.status == 2 and "gives ids up to" in found.err and "its model knows 100" in found.err
