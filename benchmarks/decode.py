"""Time per token of greedy decoding with a cache: transformers' Llama, the same function as `pre`, and other schemes.

    python benchmarks/decode.py [--shapes 125m nano] [--rounds 41] [--out benchmarks/results/decode.json]

All models of a shape have fp32 weights of the same sizes; Llama and pre(entry=embedding) have the same weights and give
the same tokens. In each round, in an order drawn anew, each decodes 32 tokens after a prompt of 32 with a
DynamicCache. Time is CPU time of the one thread; a ratio is the median of those within rounds, with its 95 % interval.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from geonorm.bench.timing import ratio, take_turns
from geonorm.hf import GeoNormConfig, GeoNormForCausalLM, to_stock
from geonorm.lab.runs import environment
from geonorm.models import preset

PROMPT, TOKENS = 32, 32
PAIRS = (("pre(entry=embedding)", "llama", 1.05), ("geonorm", "pre", 1.08))  # numerator, denominator, aim


def models(shape: str) -> dict[str, Any]:
    config = preset(shape, scheme="pre(entry=embedding)")
    torch.manual_seed(0)
    ours = GeoNormForCausalLM(GeoNormConfig.of(config)).eval()
    llama = to_stock(ours)
    # rotary tables are no weights: made anew where to_stock left them on the meta device
    fresh = transformers.AutoModelForCausalLM.from_config(llama.config)
    fresh.load_state_dict(llama.state_dict())
    found = {"llama": fresh.eval(), "pre(entry=embedding)": ours}
    for scheme in ("pre", "geonorm"):
        torch.manual_seed(0)
        found[scheme] = GeoNormForCausalLM(GeoNormConfig.of(preset(shape, scheme=scheme))).eval()
    return found


@torch.inference_mode()
def decode(model: Any, prompt: torch.Tensor) -> tuple[float, list[int]]:
    """CPU seconds per token after the prompt, and the tokens."""
    cache = DynamicCache(config=model.config)
    token = model(prompt, past_key_values=cache).logits[:, -1:].argmax(-1)
    found = [token]
    begin = time.process_time()
    for _ in range(TOKENS):
        token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
        found.append(token)
    return (time.process_time() - begin) / TOKENS, torch.cat(found, 1)[0].tolist()


def measure(shape: str, rounds: int) -> dict[str, Any]:
    found = models(shape)
    prompt = torch.randint(1000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    said = {name: decode(model, prompt)[1] for name, model in found.items()}
    assert said["llama"] == said["pre(entry=embedding)"], "Llama and pre are not one function"
    samplers = {name: lambda model=model: decode(model, prompt)[0] for name, model in found.items()}
    seconds = take_turns(samplers, rounds)
    ratios = []
    for over, under, aim in PAIRS:
        middle, low, high = ratio(seconds[over], seconds[under])
        ratios.append({"over": over, "under": under, "median": middle, "low": low, "high": high, "aim": aim})
        print(f"{shape}: {over} / {under} {middle:.3f} ({low:.3f} to {high:.3f}), aim {aim}")
    return {"milliseconds_per_token": {name: 1e3 * median(times) for name, times in seconds.items()}, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["125m", "nano"])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decode.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = {**environment.collect(torch.device("cpu")), "transformers": transformers.__version__}
    setting = {"batch": 1, "prompt": PROMPT, "tokens": TOKENS, "rounds": options.rounds}
    shapes = {shape: measure(shape, options.rounds) for shape in options.shapes}
    options.out.write_text(json.dumps({**about, **setting, "shapes": shapes}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
