#!/usr/bin/env bash
# The seven models of arXiv:2409.12951 on a million tokens of English Wikipedia: norms before and after each LayerNorm or
# RMSNorm, rotation, angle to the uniform vector beside its null, every site. For a machine with network and a GPU of 24 GB
# (without one: DEVICE=cpu, and hours). The Llama models ask for a licence: log in with `hf auth login` first.
# MODELS, DATA, TOKENS and OUT replace what is measured; arguments are passed on.
set -euo pipefail
IFS=' ' read -r -a MODELS <<< "${MODELS:-openai-community/gpt2-xl EleutherAI/gpt-neo-1.3B EleutherAI/pythia-1.4b \
EleutherAI/gpt-j-6b EleutherAI/pythia-6.9b meta-llama/Llama-2-7b-hf meta-llama/Meta-Llama-3-8B}"
OUT="${OUT:-runs/005-geometry/paper}"
for model in "${MODELS[@]}"; do
  "${PYTHON:-python}" -m geonorm probe "$model" \
    --data "${DATA:-wikimedia/wikipedia:20231101.en}" --tokens "${TOKENS:-1000000}" --context 512 --batch 8 \
    --device "${DEVICE:-auto}" --out "$OUT/$(basename "$model")" "$@"
done
