#!/usr/bin/env bash
# The runs on record were tuned on 490 steps (tag laboratory-3); now tuning runs have the full length.
# Ten single-stream schemes, and pre without the norm at the entry, at 1M parameters on books-small.
# About an hour and a half on two idle cores; stopped at any moment, the same command goes on.
# Needs the corpus books-small in $GEONORM_DATA (docs/data.md). Arguments are passed on.
set -euo pipefail
exec "${PYTHON:-python}" -m geonorm compare \
  --schemes pre post peri olmo2 deepnorm lns sqrt mix geonorm ngpt 'pre(entry=embedding)' \
  --preset nano --data books-small --batch-size 8 --steps 980 --evaluation.every 245 --evaluation.whole true \
  --tune --lrs 3e-3 6e-3 1.2e-2 --seeds 5 \
  --out "${OUT:-runs/001-placement-on-cpu}" "$@"
