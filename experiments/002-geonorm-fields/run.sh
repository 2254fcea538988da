#!/usr/bin/env bash
# The runs on record were tuned on 160 steps (tag laboratory-3); now tuning runs have the full length.
# GeoNorm's fields one at a time, at 1M parameters on books-small under the shared recipe. About forty minutes on two idle
# cores; stopped at any moment, the same command goes on. Needs the corpus books-small in $GEONORM_DATA (docs/data.md).
set -euo pipefail
"${PYTHON:-python}" -m geonorm compare \
  --schemes pre geonorm 'geonorm(decay=sqrt)' 'geonorm(decay=linear)' 'geonorm(decay=constant)' \
  'geonorm(max_angle=pi/8)' 'geonorm(max_angle=pi/2)' 'geonorm(max_angle=pi)' 'geonorm(alpha=2)' \
  'geonorm(input=norm)' 'geonorm(update=norm)' \
  --preset nano --data books-small --batch-size 8 --steps 400 --evaluation.every 200 --evaluation.tokens 65536 \
  --tune --lrs 3e-3 6e-3 1.2e-2 --seeds 3 \
  --out "${OUT:-runs/002-geonorm-fields}" "$@"
# the rate that 160 steps like best is not the best for 400: the same at equal rates
"${PYTHON:-python}" -m geonorm compare \
  --schemes pre geonorm \
  --preset nano --data books-small --batch-size 8 --steps 400 --evaluation.every 200 --evaluation.tokens 65536 --lrs 6e-3 --seeds 3 \
  --out "${OUT:-runs/002-geonorm-fields}-6e-3" "$@"
"${PYTHON:-python}" -m geonorm compare \
  --schemes 'geonorm(max_angle=pi/8)' 'geonorm(alpha=2)' 'geonorm(input=norm)' \
  --preset nano --data books-small --batch-size 8 --steps 400 --evaluation.every 200 --evaluation.tokens 65536 --lrs 1.2e-2 --seeds 3 \
  --out "${OUT:-runs/002-geonorm-fields}-12e-3" "$@"
