"""Evaluation with tasks: local question sets through lm-evaluation-harness, on runs and Hugging Face models.

Needs geonorm[eval]; without it (as in CI, whose environment stays light) only what is said then is tested.
"""

from __future__ import annotations

import json
import lzma
import sys
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from geonorm.errors import ConfigError
from geonorm.lab.evaluate import downstream as tasks
from geonorm.lab.open import open_run

try:
    import lm_eval  # noqa: F401

    HARNESS = True
except ImportError:
    HARNESS = False
needs_harness = pytest.mark.skipif(not HARNESS, reason="needs geonorm[eval]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

QUESTIONS = 40


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """$GEONORM_DATA with two sets: choices after one context, and contexts before one continuation."""
    folder = tmp_path_factory.mktemp("data") / "eval"
    folder.mkdir()
    choices = [" sat", " saw é", " on a mat"]
    plain = [
        {"id": f"plain-{i}", "context": f"the cat {i}", "choices": choices[: 2 + i % 2], "gold": i % 2}
        for i in range(QUESTIONS)
    ]
    shared = [
        {"id": f"s-{i}", "contexts": [f"a mat {i}", f"the cat {i}"], "choices": [" grows"] * 2, "gold": i % 2}
        for i in range(QUESTIONS)
    ]
    with lzma.open(folder / "plain.validation.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in plain)
    (folder / "shared.test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shared))
    return folder.parent


@pytest.fixture(autouse=True)
def data(sets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("GEONORM_DATA", str(sets))
    if HARNESS:
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def run(train: Any, tmp_path: Path) -> Path:
    assert train(tmp_path / "run", "--steps", 3, "--model.context", 32).status == 0
    return tmp_path / "run"


@pytest.fixture
def folder(tmp_path: Path, run: Path) -> Path:
    """A random Llama with the run's tokenizer, as a Hugging Face folder."""
    transformers = pytest.importorskip("transformers")
    from geonorm.hf.export import fast_tokenizer

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=257, max_position_embeddings=32, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    fast_tokenizer((run / "tokenizer.json").read_text(), 256, 32).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def scores(run: Path, context: str, choices: list[str]) -> list[float]:
    """log p(choice | context) by hand, byte by byte."""
    model = open_run(run).model
    found = []
    for choice in choices:
        before, after = list(context.encode()), list(choice.encode())
        with torch.no_grad():
            logits = model(torch.tensor([before + after[:-1]]))[0, len(before) - 1 :]
        found.append(-F.cross_entropy(logits, torch.tensor(after), reduction="sum").item())
    return found


@needs_harness
def test_a_run_is_asked_and_the_answers_are_those_by_hand(run: Path, call: Any, tmp_path: Path, sets: Path) -> None:
    out = tmp_path / "out"
    result = call("eval", run, "--tasks", "plain.validation", "shared.test", "--out", out)
    assert result.status == 0, result.err
    answer = json.loads(result.out)
    assert answer == json.loads((out / "summary.json").read_text())
    assert answer["run"] == str(run) and answer["limit"] is None

    with lzma.open(sets / "eval/plain.validation.jsonl.xz", "rt") as file:
        plain = [json.loads(line) for line in file]
    shared = [json.loads(line) for line in (sets / "eval/shared.test.jsonl").read_text().splitlines()]
    by_hand = {
        "plain.validation": [(scores(run, q["context"], q["choices"]), q["gold"]) for q in plain],
        "shared.test": [([scores(run, c, [" grows"])[0] for c in q["contexts"]], q["gold"]) for q in shared],
    }
    for name, questions in by_hand.items():
        found = answer["tasks"][name]
        right = [scored.index(max(scored)) == gold for scored, gold in questions]
        assert found["documents"] == QUESTIONS
        assert found["acc"] == pytest.approx(sum(right) / QUESTIONS)
        assert found["acc_stderr"] == pytest.approx(deviation(right) / sqrt(QUESTIONS))
    assert "acc_norm" in answer["tasks"]["plain.validation"] and "acc_norm" not in answer["tasks"]["shared.test"]


def deviation(values: list[Any]) -> float:
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


@needs_harness
def test_the_harness_gives_the_same_numbers_by_itself(folder: Path, call: Any, tmp_path: Path) -> None:
    """On a model folder, from the definitions that `geonorm eval` wrote; text and tasks in one call."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat. " * 20)
    out = tmp_path / "out"
    result = call("eval", folder, "--tasks", "plain.validation", "--limit", 30, "--data", text, "--out", out)
    assert result.status == 0, result.err
    answer = json.loads(result.out)
    assert answer["model"] == str(folder) and answer["model_type"] == "llama" and answer["limit"] == 30
    theirs = simple_evaluate(
        "hf",
        model_args=f"pretrained={folder},dtype=float32",
        tasks=["plain.validation"],
        task_manager=TaskManager(include_path=str(out / "tasks"), include_defaults=False),
        limit=30,
        device="cpu",
        batch_size=3,
    )
    for metric in ("acc", "acc_stderr", "acc_norm", "acc_norm_stderr"):
        assert answer["tasks"]["plain.validation"][metric] == theirs["results"]["plain.validation"][f"{metric},none"]


def halves(path: Path) -> list[str]:
    """Documents of a text: what is kept for training, what is held out."""
    from geonorm.lab.data import open_source

    source = open_source(str(path))
    return [doc for split in ("train", "validation") for doc in source.documents(split)]


def test_text_of_a_hugging_face_model_by_hand(folder: Path, call: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = tmp_path / "text.txt"
    content = "Spheres keep their radius, and é is two bytes.\n" * 12
    text.write_text(content)
    result = call("eval", folder, "--data", text, "--context", 16)
    assert result.status == 0, result.err
    answer = json.loads(result.out)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = [i for doc in halves(text) for i in [*doc.encode(), 256]]
    total, count = 0.0, 0
    for start in range(0, len(ids) - 16, 16):
        window = torch.tensor(ids[start : start + 17])
        with torch.no_grad():
            total += F.cross_entropy(model(window[None, :-1]).logits[0], window[1:], reduction="sum").item()
        count += 16
    assert answer["tokens"] == count and answer["part"] == "all"
    assert answer["loss"] == pytest.approx(total / count, abs=1e-6)
    assert answer["bits_per_byte"] == pytest.approx(total / log(2) / answer["bytes"], abs=1e-6)
    assert json.loads(call("eval", folder, "--data", text).out)["tokens"] % 32 == 0  # its own context


def test_the_end_of_a_document_is_what_the_folder_says(folder: Path, call: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Spheres keep their radius.\n" * 12)
    known = json.loads(call("eval", folder, "--data", text).out)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            (folder / name).write_text((folder / name).read_text().replace("<|endoftext|>", "<fin>"))
    result = call("eval", folder, "--data", text)
    assert result.status == 0, result.err
    assert json.loads(result.out)["loss"] == known["loss"]


def test_a_tokenizer_that_begins_texts_begins_windows() -> None:
    """Where the tokenizer puts a token before every text, the model sees it before every window, unscored."""
    from types import SimpleNamespace

    from geonorm.lab.evaluate.evaluate import Scorer

    seen = []

    def model(ids: torch.Tensor, use_cache: bool) -> Any:
        seen.append(ids)
        return SimpleNamespace(logits=F.one_hot(ids + 1, 9).float() * 50)

    model.config = SimpleNamespace(architectures=["LlamaForCausalLM"])  # type: ignore[attr-defined]
    ids = torch.tensor([[2, 3, 4]])
    assert Scorer(model, 7).loss(ids, ids + 1).item() == pytest.approx(0.0, abs=1e-6)
    assert Scorer(model, None).loss(ids, ids + 1, reduction="sum").item() == pytest.approx(0.0, abs=1e-6)
    assert [s.tolist() for s in seen] == [[[7, 2, 3, 4]], [[2, 3, 4]]]


@needs_harness
def test_a_random_model_scores_chance(sets: Path, tmp_path: Path) -> None:
    """Over many questions with random choices, within three standard errors."""
    from geonorm.lab.data.tokenizer import ByteTokenizer
    from geonorm.models import Decoder, DecoderConfig

    generator = torch.Generator().manual_seed(0)
    words = ["cat", "mat", "sat", "saw", "sun", "son", "sea", "see"]
    rows = []
    for i in range(400):
        chosen = [" " + words[k] for k in torch.randperm(8, generator=generator)[:4].tolist()]
        gold = int(torch.randint(4, (), generator=generator))
        rows.append({"id": str(i), "context": f"{i}:", "choices": chosen, "gold": gold})
    path = tmp_path / "guess.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    torch.manual_seed(1)
    model = Decoder(DecoderConfig(layers=1, width=16, heads=2, hidden=16, vocab_size=257, context=16)).eval()
    lm = tasks.harness_model(*tasks.adapt_decoder(model, ByteTokenizer()), batch_size=64)
    found = tasks.Tasks([str(path)]).scores(lm)["guess"]
    assert found["documents"] == 400 and abs(found["acc"] - 0.25) < 3 * found["acc_stderr"]
    assert 0 < found["acc_stderr"] < 0.03


@needs_harness
def test_refusals(run: Path, call: Any, tmp_path: Path, sets: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "what?"}\n')
    long = tmp_path / "long.jsonl"  # than the context of 32 bytes
    long.write_text(json.dumps({"context": "the cat", "choices": [" sat" * 40, " saw"], "gold": 0}) + "\n")
    for path, said in ((bad, "not a set of questions"), (long, "long: a choice of question 0 has 160 tokens")):
        result = call("eval", run, "--tasks", path)
        assert result.status == 2 and said in result.err.splitlines()[-1], result.err


@needs_harness
@pytest.mark.slow
def test_an_unknown_task_names_the_nearest(run: Path, call: Any) -> None:
    """Slow: the harness reads its fourteen thousand names."""
    for name, nearest in (("hellaswagg", "'hellaswag'"), ("plain.validatoin", "'plain.validation'")):
        result = call("eval", run, "--tasks", name)
        assert result.status == 2 and f"did you mean {nearest}?" in result.err and len(result.err.splitlines()) == 1


def test_without_the_harness(run: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    result = call("eval", run, "--tasks", "plain.validation")
    assert result.status == 2 and "pip install geonorm[eval]" in result.err and len(result.err.splitlines()) == 1


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    own = tasks.local_sets()["plain.validation"]
    (other := tmp_path / own.name).write_bytes(own.read_bytes())
    with pytest.raises(ConfigError, match=r"two sets are called plain\.validation: rename"):  # one would be lost
        tasks.Tasks(["plain.validation", str(other)])
