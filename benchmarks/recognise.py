"""Which causal families of the installed transformers are recognised by structure, and what apply does with them.

    python benchmarks/recognise.py [FAMILY ...]

Builds a tiny model of each family, moves every parameter away from its start, and reports: its scheme, whether it is
probed, whether the logits under that scheme are the ones it had, whether it trains ten steps under geonorm, whether
undo gives every logit back bit for bit; or the line with which it is refused.
"""

import argparse
import copy
import json
import warnings
from typing import Any

import torch
import torch.nn.functional as F
import transformers

from geonorm import hf, probe
from geonorm.errors import GeonormError
from geonorm.hf.tiny import default_config, families, tiny


def try_family(name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"family": name}
    try:
        model = tiny(default_config(name))
    except Exception as error:  # of transformers: no small model to be had by these names
        return row | {"built": False, "why": f"{type(error).__name__}: {str(error)[:120]}"}
    row["built"] = True
    try:
        row["scheme"] = str(hf.scheme_of(model))
    except GeonormError as error:
        return row | {"why": str(error)}
    ids = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(1))

    def logits() -> torch.Tensor:
        out = model(input_ids=ids)
        head: torch.Tensor = out.logits if hasattr(out, "logits") else out[0] @ model.get_input_embeddings().weight.T
        return head

    try:
        row["probed"] = bool(probe(model, ids).sites)
        with torch.no_grad():  # RecurrentGemma's layers hold their last state, which is not copied with a gradient
            wanted = logits()
            report = hf.apply(model, row["scheme"])
            row["difference"] = float((logits() - wanted).abs().max() / wanted.abs().max())
            report.undo()
            row["undo"] = bool(torch.equal(logits(), wanted))
        model = copy.deepcopy(model)
        hf.apply(model, "geonorm")
        optimizer = torch.optim.AdamW(model.train().parameters(), 3e-3)
        losses = []
        for _ in range(10):
            loss = F.cross_entropy(logits()[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        row["trains"] = losses[-1] < losses[0]
    except Exception as error:
        row["why"] = f"{type(error).__name__}: {str(error)[:300]}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for name in options.families or families():
        rows.append(row := try_family(name))
        print(json.dumps(row), flush=True)
    built = [row for row in rows if row["built"]]
    same = [row for row in built if row.get("difference", 1) < 1e-4]
    counts = [sum(bool(row.get(key)) for row in built) for key in ("scheme", "probed", "trains", "undo")]
    known = f"{counts[0]} recognised, {counts[1]} probed, {len(same)} with their logits under their scheme"
    came = f"{counts[2]} train under geonorm, {counts[3]} come back bit for bit"
    print(f"{len(rows)} families, {len(built)} built, {known}, {came}")


if __name__ == "__main__":
    main()
