"""The LaTeX corpus again, split by work: no part of a held-out work is trained on.

    python experiments/009-tokens/works.py $GEONORM_DATA/latex runs/latex-by-work

Documents say where they are from, `owner/repository:file`; a work is a repository. Works are held out whole, in the
order of the SHA-256 of their names, until they make up HELD of all characters; a work that alone is more than that is
trained on.
"""

import argparse
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

HELD = 0.05
"""Share of the characters that is held out, two and a half of 53 million: four works of nineteen, two of them books."""


def work_of(document: Mapping[str, str]) -> str:
    return document["source"].partition(":")[0]


def choose_held(documents: Sequence[Mapping[str, str]]) -> set[str]:
    """The works to hold out."""
    sizes = Counter[str]()
    for document in documents:
        sizes[work_of(document)] += len(document["text"])
    most, held = HELD * sum(sizes.values()), set[str]()
    for work in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if sum(sizes[name] for name in held) + sizes[work] <= most:
            held.add(work)
    return held


def main(corpus: Path, out: Path) -> None:
    documents = []
    for part in ("train", "validation"):
        with lzma.open(corpus / f"{part}.jsonl.xz", "rt", encoding="utf-8") as lines:
            documents += [json.loads(line) for line in lines]
    held = choose_held(documents)
    out.mkdir(parents=True, exist_ok=True)
    for part, wanted in (("train", False), ("validation", True)):
        own = [document for document in documents if (work_of(document) in held) == wanted]
        text = "".join(json.dumps({"text": document["text"]}) + "\n" for document in own)
        (out / f"{part}.jsonl").write_text(text, encoding="utf-8")
        works = len({work_of(document) for document in own})
        print(f"{part}: {len(own)} documents of {works} works, {sum(len(d['text']) for d in own):,} characters")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder with train.jsonl.xz and validation.jsonl.xz")
    parser.add_argument("out", type=Path, metavar="OUT")
    words = parser.parse_args()
    main(words.corpus, words.out)
