"""Local question files, as tasks of lm-evaluation-harness.

A local set is a JSON-lines file, one question a line: `{"context": str, "choices": [str, ...], "gold": int}`, or with
`contexts`, one per choice, before one shared continuation (WinoGrande). Sets are found in `$GEONORM_DATA/eval` by file
name without suffix (`copa.validation`), or given as a path.
"""

import os
from pathlib import Path
from typing import Any

from ...errors import DataError
from ..data.files import JSON_SUFFIXES, read_json_records


def local_sets() -> dict[str, Path]:
    """Question files of `$GEONORM_DATA/eval` by name."""
    root = os.environ.get("GEONORM_DATA")
    paths = sorted(Path(root, "eval").glob("*")) if root else []
    return {name: path for path in paths if (name := set_name(path)) is not None}


def set_name(path: Path) -> str | None:
    """The name of a question file; None for any other path."""
    suffix = next((suffix for suffix in JSON_SUFFIXES if suffix in path.name), None)
    return path.name.partition(suffix)[0] if suffix and path.is_file() else None


def definition(name: str, path: Path) -> dict[str, Any]:
    """The harness's own definition of a local set, plain data: written as YAML, its command line runs it too.

    Accuracy by characters (acc_norm) is left out where all choices end in one shared continuation: the harness would
    divide by the length of the contexts.
    """
    shared = check_questions(path)
    texts = (
        {"doc_to_text": "gold", "doc_to_choice": "contexts", "doc_to_target": "{{choices[gold]}}"}
        if shared
        else {"doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}", "doc_to_target": "gold"}
    )
    metrics = ("acc",) if shared else ("acc", "acc_norm")
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path.resolve())}},
        "test_split": "test",
        "output_type": "multiple_choice",
        **texts,
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics],
    }


def check_questions(path: Path) -> bool:
    """True if questions have one context per choice, which all of them or none must. DataError for the first line that
    is no question."""
    forms = set()
    for place, question in read_json_records(path):
        try:
            gold, choices, shared = question["gold"], question["choices"], "contexts" in question
            contexts = question["contexts"] if shared else [question["context"]]
            sound = isinstance(contexts, list) and isinstance(choices, list) and type(gold) is int
            sound = sound and len(contexts) == (len(choices) if shared else 1) and 0 <= gold < len(choices)
            texts = all(isinstance(text, str) for text in contexts + choices)
            if not sound or not texts or (shared and len(set(choices)) > 1):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{place}: not a set of questions: each line needs context, choices and gold, the index of the right "
                "one; or contexts, as many choices that are all one text, and gold"
            ) from None
        forms.add(shared)
    if len(forms) != 1:
        raise DataError(f"{path}: {'no questions' if not forms else 'some lines have context and some contexts'}")
    return forms.pop()
