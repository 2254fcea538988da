"""What the tests of `geonorm.hf` share: a tiny model of any scheme, ids, a finished run, quiet transformers."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("transformers") and find_spec("accelerate") else ["test_*.py"]

SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 61,
    "max_position_embeddings": 32,
}


@pytest.fixture(autouse=True, scope="session")
def quiet() -> Iterator[None]:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    yield


@pytest.fixture
def build() -> Callable[..., Any]:
    """build(scheme, **fields of the configuration): a tiny language model in eval mode, with is_causal=False one of
    masked tokens; equal calls, equal weights."""

    def make(scheme: str = "geonorm", **fields: Any) -> Any:
        import torch

        from geonorm import hf

        torch.manual_seed(0)
        config = hf.GeoNormConfig(scheme=scheme, **{**SIZE, **fields})
        model = (hf.GeoNormForCausalLM if config.is_causal else hf.GeoNormForMaskedLM)(config).eval()
        with torch.no_grad():  # gains and scalars that are not 1 or 0, so that none can be forgotten
            for parameter in model.parameters():
                if parameter.dim() < 2 and (parameter.numel() < 61 or not config.is_causal):
                    parameter += 0.1 * torch.rand(parameter.shape)
        return model

    return make


@pytest.fixture
def ids() -> Any:
    import torch

    return torch.randint(1, 61, (2, 9), generator=torch.Generator().manual_seed(0))


def train_run(folder: Path, *options: str) -> Path:
    """A finished run of six steps with an own BPE."""
    from geonorm.cli.main import main

    lines = (f"the cat number {i} sat on the mat and saw {i * i} residual streams.\n" for i in range(400))
    (folder / "small.txt").write_text("".join(lines))
    shape = "--model.layers 2 --model.width 16 --model.heads 2 --model.hidden 16 --model.vocab_size 300"
    rest = "--evaluation.tokens 256 --evaluation.trace_tokens 64 --runtime.tensorboard false --runtime.device cpu"
    words = ["train", *f"{shape} {rest} --steps 6".split(), *options, "--data", str(folder / "small.txt")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEONORM_CACHE", str(folder / "cache"))
        assert main([*words, "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("run"), "--model.context", "16", "--scheme", "pre")
