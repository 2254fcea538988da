"""Evaluation with tasks: local question sets through lm-evaluation-harness, on runs and Hugging Face models.

Needs geonorm[eval]; without it (as in CI, whose environment stays light) only what is said then is tested.
"""

import json
import lzma
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from geonorm.errors import ConfigError, DataError
from geonorm.lab.evaluate import cloze, downstream as tasks
from geonorm.lab.open import open_run

from ...rows import each

HARNESS = find_spec("lm_eval") is not None
needs_harness = pytest.mark.skipif(not HARNESS, reason="needs geonorm[eval]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

QUESTIONS = 40
CHOICES = [" sat", " saw é", " on a mat"]
PLAIN = [{"context": f"the cat {i}", "choices": CHOICES[: 2 + i % 2], "gold": i % 2} for i in range(QUESTIONS)]
SHARED = [
    {"contexts": [f"a mat {i}", f"the cat {i}"], "choices": [" grows"] * 2, "gold": i % 2} for i in range(QUESTIONS)
]


def lines(rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(autouse=True)
def sets(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """$GEONORM_DATA/eval with two sets: choices after one context, and contexts before one continuation."""
    (folder := tmp_path_factory.mktemp("data") / "eval").mkdir()
    (folder / "plain.validation.jsonl.xz").write_bytes(lzma.compress(lines(PLAIN).encode()))
    (folder / "shared.test.jsonl").write_text(lines(SHARED))
    monkeypatch.setenv("GEONORM_DATA", str(folder.parent))
    if HARNESS:
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    return folder


@pytest.fixture
def run(train: Any, tmp_path: Path) -> Path:
    assert train(tmp_path / "run", "--steps", 3, "--model.context", 32).status == 0
    return tmp_path / "run"


@needs_harness
def test_a_run_is_asked_and_the_answers_are_those_by_hand(run: Path, call: Any, tmp_path: Path) -> None:
    model, out = open_run(run).model, tmp_path / "out"

    def score(context: str, choice: str) -> float:
        """log p(choice | context), byte by byte."""
        before, after = list(context.encode()), list(choice.encode())
        with torch.no_grad():
            logits = model(torch.tensor([before + after[:-1]]))[0, len(before) - 1 :]
        return -F.cross_entropy(logits, torch.tensor(after), reduction="sum").item()

    result = call("eval", run, "--tasks", "plain.validation", "shared.test", "--out", out)
    assert result.status == 0, result.err
    answer = json.loads(result.out)
    assert answer == json.loads((out / "summary.json").read_text())
    assert answer["run"] == str(run) and answer["limit"] is None
    by_hand: dict[str, list[tuple[list[float], Any]]] = {
        "plain.validation": [([score(q["context"], c) for c in q["choices"]], q["gold"]) for q in PLAIN],  # type: ignore[attr-defined]
        "shared.test": [([score(c, " grows") for c in q["contexts"]], q["gold"]) for q in SHARED],  # type: ignore[attr-defined]
    }
    for name, questions in by_hand.items():
        right = [scored.index(max(scored)) == gold for scored, gold in questions]
        assert answer["tasks"][name]["documents"] == QUESTIONS
        assert answer["tasks"][name]["acc"] == pytest.approx(sum(right) / QUESTIONS)
        assert answer["tasks"][name]["acc_stderr"] == pytest.approx(stdev(right) / QUESTIONS**0.5)
    assert "acc_norm" in answer["tasks"]["plain.validation"] and "acc_norm" not in answer["tasks"]["shared.test"]


@needs_harness
def test_refusals(run: Path, call: Any, tmp_path: Path) -> None:
    (bad := tmp_path / "bad.jsonl").write_text('{"question": "what?"}\n')
    long = tmp_path / "long.jsonl"  # than the context of 32 bytes
    long.write_text(lines([{"context": "the cat", "choices": [" sat" * 40, " saw"], "gold": 0}]))
    for path, said in ((bad, "not a set of questions"), (long, "long: a choice of question 0 has 160 tokens")):
        result = call("eval", run, "--tasks", path)
        assert result.status == 2 and said in result.err.splitlines()[-1], result.err


def test_without_the_harness(run: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    result = call("eval", run, "--tasks", "plain.validation")
    assert result.status == 2 and result.err == "geonorm eval: --tasks needs lm_eval: pip install 'geonorm[eval]'\n"


def test_two_sets_of_one_name_are_refused(tmp_path: Path, sets: Path) -> None:
    (other := tmp_path / "shared.test.jsonl").write_bytes((sets / "shared.test.jsonl").read_bytes())
    with pytest.raises(ConfigError, match=r"two sets are called shared\.test: rename"):  # one would be lost
        tasks.Tasks(["shared.test", str(other)])


ONE: dict[str, Any] = {"context": "a", "choices": ["b", "c"], "gold": 1}
CONTEXTS: dict[str, Any] = {"contexts": ["a", "b"], "choices": ["c", "c"], "gold": 0}


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n\n".join(map(json.dumps, rows)))  # blank lines between, which do not count
    return path


def test_sets_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the harness is told where their choices are."""
    monkeypatch.setenv("GEONORM_DATA", str(tmp_path))
    assert cloze.local_sets() == {}
    (folder := tmp_path / "eval").mkdir()
    shared = write(folder / "shared.test.jsonl", CONTEXTS)
    (plain := folder / "plain.validation.jsonl.xz").write_bytes(lzma.compress(json.dumps(ONE).encode()))
    (folder / "notes.txt").write_text("no set")
    assert cloze.local_sets() == {"plain.validation": plain, "shared.test": shared}
    one, several = cloze.definition("x", plain), cloze.definition("y", shared)
    assert (one["task"], one["doc_to_text"], one["doc_to_choice"]) == ("x", "{{context}}", "{{choices}}")
    assert (several["task"], several["doc_to_text"], several["doc_to_choice"]) == ("y", "gold", "contexts")
    assert [len(each["metric_list"]) for each in (one, several)] == [2, 1]


NONE = ":3: not a set of questions"


@each(
    "first, row, message",
    [
        *((ONE, ONE | {"gold": gold}, NONE) for gold in (2, -1, True)),
        *((ONE, ONE | change, NONE) for change in ({"context": ["a"]}, {"choices": ["b", 2]}, {"choices": "bc"})),
        *((ONE, row, NONE) for row in ({"context": "a", "choices": ["b", "c"]}, 3)),
        *((ONE, CONTEXTS | {"contexts": contexts}, NONE) for contexts in (["a"], "ab")),
        (CONTEXTS, CONTEXTS | {"choices": ["c", "d"]}, NONE),
        (ONE, CONTEXTS, "some lines have context and some contexts"),
    ],
)
def test_every_line_must_be_a_question(first: object, row: object, message: str, tmp_path: Path) -> None:
    """Not the first alone: the harness ends at a later one in a traceback."""
    with pytest.raises(DataError, match=f"wrong.jsonl.*{message}"):
        cloze.check_questions(write(tmp_path / "wrong.jsonl", first, row))
    with pytest.raises(DataError, match="no questions"):
        cloze.check_questions(write(tmp_path / "empty.jsonl"))
