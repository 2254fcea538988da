"""A run that begins with the weights of another one, also under another scheme."""

from pathlib import Path
from typing import Any

from ...errors import CheckpointError, require
from ...models.decoder import Transformer
from ...parsing import list_paths
from ..checkpoint import load_matching
from ..distributed.ranks import World
from ..resolve import FolderPart
from ..runs.folder import RunFolder
from ..runs.identity import read_last
from ..runs.provenance import seen_data
from ..storage import saved_steps


def load_initial_weights(folder: FolderPart, model: Transformer, tokenizer: str, world: World) -> dict[str, Any] | None:
    """Give a model the newest weights of the run `init_from`, by name. Returns the record for environment.json: the
    run, the step, sha256 of the files of weights and of their training data, and a line about them; None where there
    is no such run, or the folder holds a checkpoint that the run goes on from. CheckpointError, before anything is
    written, for a run without a checkpoint, with another tokenizer or with weights of another shape; then the model is
    as it was."""
    if folder.init_from is None or saved_steps(folder.path / "checkpoints"):
        return None
    source = RunFolder(Path(folder.init_from))
    settings, steps = source.config(), saved_steps(source.checkpoints)
    require(steps, f"{source.path} holds no checkpoint yet; let it train first", CheckpointError)
    if read_last(source.path).get("tokenizer_sha256", tokenizer) != tokenizer:
        raise CheckpointError(
            f"{source.path} has another tokenizer: add --tokens.tokenizer {source.path / 'tokenizer.json'}"
        )
    state, loaded, missing, left = load_matching(source.checkpoints / f"step-{steps[-1]}", model, world)
    model.constrain()
    line = (
        f"begins with the weights of {source.path} at step {steps[-1]} ({settings.scheme}): {len(loaded)} tensors "
        f"loaded; at their initial values: {list_paths(missing)}; left out: {list_paths(left)}"
    )
    hashes = {"sha256": state["sha256"], "data_sha256": sorted(seen_data(source.path))}
    return {"run": str(source.path.resolve()), "step": steps[-1], **hashes, "line": line}
