#!/usr/bin/env bash
# The runs on record were tuned on 160 steps (tag laboratory-3); now tuning runs have the full length.
# The whole zoo at 1M parameters on books-small under the shared recipe, then the schemes that ask for another recipe
# under their own. About an hour and a half on two idle cores; stopped at any moment, the same command goes on.
# Needs the corpus books-small in $GEONORM_DATA (docs/data.md). Arguments are passed on to both.
set -euo pipefail
"${PYTHON:-python}" -m geonorm compare \
  --schemes pre post peri olmo2 deepnorm lns sqrt mix geonorm ngpt residual_dual 'pre(entry=embedding)' \
  sandwich keel angpt hybrid 'first(hybrid(input=norm), hybrid)' rezero layerscale orthogonal siamese 'siamese(sum=norm)' hyper \
  'geonorm(after=norm)' 'geonorm(input=norm, update=norm)' \
  'geonorm(retraction=projection, learn=step, decay=constant, decay_on=update, max_angle=pi)' \
  --preset nano --data books-small --batch-size 8 --steps 400 --evaluation.every 200 --evaluation.tokens 65536 \
  --tune --lrs 3e-3 6e-3 1.2e-2 --seeds 3 \
  --out "${OUT:-runs/003-zoo}" "$@"
"${PYTHON:-python}" -m geonorm compare \
  --schemes ngpt angpt --recipe own \
  --preset nano --data books-small --batch-size 8 --steps 400 --evaluation.every 200 --evaluation.tokens 65536 \
  --tune --lrs 6e-3 1.2e-2 2.4e-2 --seeds 3 \
  --out "${OUT:-runs/003-zoo}-own" "$@"
