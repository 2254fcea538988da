#!/usr/bin/env bash
# LayerNorm and RMSNorm under three optimizers, three learning rates and two batch sizes, deeper models for the implied
# schedule, gradients and modes at initialisation; half an hour on an idle core. Stopped at any moment, the same command goes on.
# Needs the corpus books-small in $GEONORM_DATA (docs/data.md); with COMPARISONS (directories of experiments 001 and 003)
# also the rank correlations. Arguments are parts of names of runs. The seven models of the paper: paper.sh.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python}"
"$python" "$here/train.py" "${OUT:-runs/005-geometry}" "$@"
"$python" "$here/gradients.py" "$here"
"$python" "$here/modes.py" "$here"
if [ -n "${COMPARISONS:-}" ]; then
  IFS=' ' read -r -a comparisons <<< "$COMPARISONS"
  "$python" "$here/concentration.py" "$here" "${comparisons[@]}"
fi
"$python" "$here/analyse.py" "${OUT:-runs/005-geometry}" "$here"
