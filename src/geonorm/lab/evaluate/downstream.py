"""Downstream tasks: lm-evaluation-harness over a model in memory, on local question files (`cloze`) or tasks of its
own, whose data come from the network. The score of a choice is the log-likelihood of exactly its text after exactly
its context."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import ConfigError, DataError, explained, import_extra, nearest
from ...models.decoder import Decoder
from ...parsing import finite_row
from ..data import Tokenizer
from .cloze import definition, local_sets, set_name


def harness(name: str) -> Any:
    """A module of lm-evaluation-harness. ConfigError if it is not installed."""
    module = import_extra(f"lm_eval.{name}", "--tasks", "eval")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return module


class Tasks:
    """Tasks, loaded once for any number of models.

    names: local sets, paths of question files, or tasks and groups of the harness. limit: most documents of each task.
    ConfigError for an unknown name; DataError for a task whose data cannot be loaded.
    """

    def __init__(self, names: Iterable[str], limit: int | None = None) -> None:
        self.limit = limit
        self.definitions: dict[str, dict[str, Any]] = {}
        others: list[str] = []
        known = local_sets()
        for name in names:
            path = known.get(name) or Path(name).expanduser()
            if (stem := set_name(path)) is None:
                others.append(name)
            elif stem in self.definitions and self.definitions[stem] != definition(stem, path):
                raise ConfigError(f"two sets are called {stem}: rename {path}, since results go by that name")
            else:
                self.definitions[stem] = definition(stem, path)
        manager = harness("tasks").TaskManager(include_defaults=bool(others))
        for name in others:
            if name not in manager.task_index:
                guess = nearest(name, [*known, *manager.all_tasks])
                has = f"local sets: {', '.join(known)}" if known else "$GEONORM_DATA/eval holds no local sets"
                raise ConfigError(f"unknown task {name!r}{': ' + guess if guess else ''} ({has})")
        import datasets  # a part of the harness

        datasets.disable_progress_bars()  # where data come from the network, the harness says so itself
        where = f"data of {', '.join(others)}" if others else f"question files {', '.join(self.definitions)}"
        with explained(f"{where} cannot be loaded", DataError, Exception):  # of the harness, datasets, the network
            self.loaded = manager.load([*self.definitions.values(), *others])
        for task in self.loaded["tasks"].values():
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=1234)

    def write(self, folder: Path) -> None:
        """Writes the definitions of local sets as YAML: `lm_eval run --include_path FOLDER` runs the same."""
        import yaml

        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.definitions.items():
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def scores(self, lm: Any) -> dict[str, dict[str, Any]]:
        """Results by task: the number of documents, and each metric with its standard error."""
        report = harness("evaluator").evaluate(lm, self.loaded, limit=self.limit, bootstrap_iters=1000)
        rows = {}
        for name, result in report["results"].items():
            samples = report["samples"].get(name)  # none of a group
            documents = {"documents": len({sample["doc_id"] for sample in samples})} if samples else {}
            rows[name] = finite_row(documents | metrics(result))
        return rows


def metrics(row: dict[str, Any]) -> dict[str, float]:
    """The harness's `acc,none` as acc, `exact_match,strict` as exact_match[strict]; numbers alone."""
    numbers = {}
    for key, value in row.items():
        metric, comma, which = key.partition(",")
        if comma and isinstance(value, (int, float)):
            numbers[metric if which == "none" else f"{metric}[{which}]"] = float(value)
    return numbers


def harness_model(model: Any, tokenizer: Any, batch_size: int, live: bool = False) -> Any:
    """The harness's language model around a Hugging Face model in memory and its tokenizer. live: with progress bars.

    DataError for a choice that does not fit the model's context, where the harness itself ends in an AssertionError.
    """
    lm = harness("models.huggingface").HFLM(
        pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size
    )
    loglikelihood = lm.loglikelihood

    def check_and_score(requests: Any, **settings: Any) -> Any:
        for request in requests:
            if (size := len(lm.tok_encode(request.args[1], add_special_tokens=False))) > lm.max_length:
                raise DataError(
                    f"{request.task_name}: a choice of question {request.doc_id} has {size} tokens, and the model's "
                    f"context is {lm.max_length}: take it out"
                )
        return loglikelihood(requests, **{"disable_tqdm": not live, **settings})

    lm.loglikelihood = check_and_score
    return lm


def adapt_decoder(model: Decoder, tokenizer: Tokenizer) -> tuple[Any, Any]:
    """A decoder of ours, sharing its weights, and its tokenizer, as transformers has them."""
    from ...hf import adapt
    from ...hf.export import fast_tokenizer

    end = tokenizer.eos
    adapted = adapt(model, bos_token_id=end, eos_token_id=end, pad_token_id=end)
    return adapted, fast_tokenizer(tokenizer.json, end, model.config.context)
