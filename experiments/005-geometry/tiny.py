"""Tiny random models of the seven architectures of arXiv:2409.12951, to try paper.sh without network.

python experiments/005-geometry/tiny.py DIR
MODELS="$(ls -d DIR/* | tr '\n' ' ')" DATA=stdlib TOKENS=4096 experiments/005-geometry/paper.sh
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-xl": ("GPT2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "gpt-neo-1.3B": ("GPTNeo", {"hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 64,
                                "attention_types": [[["global", "local"], 2]]}),
    "pythia-1.4b": ("GPTNeoX", {**LLAMA, "max_position_embeddings": 64}),
    "gpt-j-6b": ("GPTJ", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "rotary_dim": 4}),
    "pythia-6.9b": ("GPTNeoX", {**LLAMA, "max_position_embeddings": 64}),
    "Llama-2-7b-hf": ("Llama", {**LLAMA, "max_position_embeddings": 64}),
    "Meta-Llama-3-8B": ("Llama", {**LLAMA, "num_key_value_heads": 2, "max_position_embeddings": 64}),
}  # fmt: skip


def main(out: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_alone(), eos_token="<end>")
    for name, (family, settings) in MODELS.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(vocab_size=len(tokenizer), **settings)
        config.bos_token_id = config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
        head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
        getattr(transformers, f"{family}{head}")(config).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)


def bytes_alone() -> Tokenizer:
    """One token a byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(special_tokens=["<end>"], initial_alphabet=alphabet))
    return tokenizer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
