#!/usr/bin/env bash
# Nano Llama against nano GPT-2 and every model between them that takes one factor from the other end: 14 models, three
# seeds, a quarter of an hour on an idle core; stopped at any moment, the same command goes on.
# Needs the corpus books-small in $GEONORM_DATA (docs/data.md). Arguments are parts of names of runs, such as seed0.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
"${PYTHON:-python}" "$here/train.py" "${OUT:-runs/006-uniform-direction}" "$@"
"${PYTHON:-python}" "$here/analyse.py" "${OUT:-runs/006-uniform-direction}" "$here"
