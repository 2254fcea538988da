"""How much attention each head of a trained run pays to a token itself and to those just before it.

    python experiments/heads.py OUT.csv RUN ...

Mean over the tokens from the 17th on of 32 windows spread over the validation text of the run, its last weights.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).parent))
from programme import folder_with

from geonorm.errors import GeonormError
from geonorm.lab.data.batches import validation_batches
from geonorm.lab.open import open_run
from geonorm.lab.train.text import load_text

WINDOWS, FROM, BACK = 32, 16, 4
HEAD = ("run", "block", "head", *(f"back_{offset}" for offset in range(BACK)))


class Weights(TorchFunctionMode):
    """Keeps the causal attention weights (batch, heads, queries, keys) of every call of attention inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key = args[:2]
            scores = query @ key.mT * (kwargs.get("scale") or query.shape[-1] ** -0.5)
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            self.found.append(torch.softmax(scores.masked_fill(later, -torch.inf), -1))
        return func(*args, **kwargs)


@torch.no_grad()
def measure(run: Path) -> Iterator[list[Any]]:
    """A row of HEAD for each head."""
    opened = open_run(run, torch.device("cpu"))
    model = opened.model.eval()
    context = model.config.context
    ((ids, _),) = validation_batches(load_text(opened.config).tokens.validation, WINDOWS, context, WINDOWS * context)
    with Weights() as seen:
        model(ids)
    for block, weights in enumerate(seen.found):
        for head in range(weights.shape[1]):
            shares = [weights[:, head].diagonal(-back, 1, 2)[:, FROM - back :].mean().item() for back in range(BACK)]
            yield [run.name, block + 1, head + 1, *(f"{share:.3f}" for share in shares)]


def table_in_folder(word: str) -> Path:
    if not word.endswith(".csv") or not Path(word).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{word} is no .csv in a folder that is there: name the table to write first")
    return Path(word)


def main(out: Path, runs: Sequence[Path]) -> None:
    rows = [row for run in runs for row in measure(run)]
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT.csv", type=table_in_folder)
    parser.add_argument("runs", metavar="RUN", type=folder_with("config.yaml", of="a run"), nargs="+")
    words = parser.parse_args()
    try:
        main(words.out, words.runs)
    except GeonormError as error:
        parser.error(str(error))
