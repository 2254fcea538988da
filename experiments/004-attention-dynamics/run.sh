#!/usr/bin/env bash
# The settings of arXiv:2510.22026 and what it leaves open: (a) its ODE plots, beta = 5 and n = 256 orthonormal tokens;
# (b) random Kaiming weights, d = 512, one head, beta = sqrt(d), uniform tokens, drawn once or anew in each layer.
# (c) Post-Norm on the sphere in d = 3, until its clusters have met. Arguments are passed on to every simulation.
set -euo pipefail
OUT="${OUT:-runs/004-attention-dynamics}"
PYTHON="${PYTHON:-python}"
"$PYTHON" -m geonorm simulate \
  --schemes post pre peri 'mix(share=0.25)' sqrt 'ngpt(alpha=1)' deepnorm lns olmo2 geonorm 'geonorm(update=norm)' \
  --init equiangular --tokens 256 --dim 256 --beta 5 --time 1000 --depth 20 --points 32 --seeds 1 \
  --out "$OUT/equiangular" "$@"
"$PYTHON" -m geonorm simulate \
  --schemes post pre peri 'mix(share=0.25)' sqrt 'ngpt(alpha=1)' lns geonorm 'geonorm(decay=sqrt)' 'geonorm(update=norm)' \
  --init uniform --tokens 64 --dim 512 --weights kaiming --per run --time 128 --depth 128 --method layers \
  --points 40 --seeds 2 --dtype float32 --out "$OUT/kaiming-per-run" "$@"
"$PYTHON" -m geonorm simulate \
  --schemes post pre peri 'mix(share=0.25)' sqrt 'ngpt(alpha=1)' lns geonorm 'geonorm(decay=sqrt)' 'geonorm(update=norm)' \
  --init uniform --tokens 64 --dim 512 --weights kaiming --per layer --time 128 --depth 128 --method layers \
  --points 40 --seeds 2 --dtype float32 --out "$OUT/kaiming-per-layer" "$@"
"$PYTHON" -m geonorm simulate --schemes post --init uniform --tokens 80 --dim 3 --beta 5 --time 30000 --points 80 --seeds 1 \
  --out "$OUT/post-d3" "$@"
