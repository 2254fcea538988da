"""Text to token ids and back: bytes, a byte-level BPE trained on the text, or any ``tokenizer.json``, the Hub's too."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, cause, explained, import_extra, nearest, require
from .cache import cache_folder, new_folder, write_errors
from .files import read_bytes, sha256_of
from .source import Source

END = "<|endoftext|>"
MASK = "<|mask|>"
NONE = '{"tokenizer": "none", "vocab_size": '
"""How the tokenizer.json of a run on token ids begins."""
NO_TOKENIZER = "this model was trained on token ids and has no tokenizer: it reads and writes no text"
MASK_NAMES = (MASK, "[MASK]", "<mask>")
END_NAMES = (END, "<|end_of_text|>", "<|end|>", "<eos>", "</s>", "[SEP]", "<|im_end|>", "<|eot_id|>")
BPE_FORMAT = 1  # raise it whenever the training below changes
BPE_CHARACTERS = 16_000_000  # of train text that the own BPE is trained on
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(?<!\.json)(?<!\.gz)(?<!\.xz)")
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
TokenIds = NDArray[np.unsignedinteger[Any]]


class Tokenizer:
    """What geonorm needs of a tokenizer. This base class itself stands for token ids that another program made, of
    whose text nothing is known.

    `eos` is the id put after each document; text that spells the name of this token stays text, if the tokenizer has it
    as a special token. `mask` is the id of the mask token, where there is one; `unknown` that of text without a token
    of its own, else -1. `fingerprint` is the SHA-256 (hex) of the tokenizer's canonical JSON. `own_end`: the token of
    `eos`, where tokenizer.json does not say which it is.
    """

    name: str = "none"
    eos: int = -1
    mask: int | None = None
    unknown: int = -1
    own_end: str | None = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.json = vocab_size, f"{NONE}{vocab_size}}}"

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(canonical(json.loads(self.json)).encode()).hexdigest()

    @property
    def dtype(self) -> type[np.uint16] | type[np.uint32]:
        """The smallest type that holds every id."""
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    def encode(self, texts: list[str]) -> list[TokenIds]:
        """The ids (1-d, `dtype`) of each text, without special tokens."""
        raise DataError(NO_TOKENIZER)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special tokens vanish, broken UTF-8 becomes U+FFFD."""
        raise DataError(NO_TOKENIZER)

    def token_bytes(self) -> NDArray[np.int64]:
        """The UTF-8 length in bytes of each id's text, shape (vocab_size,); 0 for special tokens."""
        return np.zeros(self.vocab_size, dtype=np.int64)


class ByteTokenizer(Tokenizer):
    """Ids 0-255 are the bytes of UTF-8, 256 ends a document. Needs no library."""

    def __init__(self) -> None:
        self.name, self.vocab_size, self.eos, self.json = "byte", 257, 256, BYTE_JSON

    def encode(self, texts: list[str]) -> list[TokenIds]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < self.eos).decode(errors="replace")

    def token_bytes(self) -> NDArray[np.int64]:
        return np.array([1] * 256 + [0], dtype=np.int64)


class FileTokenizer(Tokenizer):
    """A ``tokenizer.json`` run by the tokenizers library. end: the end-of-document token where the vocabulary has none
    of the usual names; tokenizer.json does not say which it is, the files beside it do. It is `own_end` then."""

    def __init__(self, name: str, text: str, end: str | None = None) -> None:
        self.name, self.json = name, text
        library = import_extra("tokenizers", f"tokenizer '{name}'", "train")
        # the library raises plain Exception for whatever it cannot parse
        with explained(f"{name}: not a tokenizer.json: give the file of a fast tokenizer", DataError, Exception):
            self._tokenizer: Any = library.Tokenizer.from_str(text)
            model = json.loads(text)["model"]
        # a training stream is not a batch of requests: nothing is cut, filled up, or taken for a control token
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        ends = [token for token in (*END_NAMES, *([end] if end else [])) if token in self._ids]
        require(ends, f"{name}: no end-of-document token: add one of {' '.join(END_NAMES)} to the tokenizer", DataError)
        self.eos, self.vocab_size = self._ids[ends[0]], max(self._ids.values()) + 1
        self.own_end = ends[0] if ends[0] not in END_NAMES else None
        self.mask = next((self._ids[token] for token in MASK_NAMES if token in self._ids), None)
        number = model.get("unk_id")
        self.unknown = self._ids.get(model.get("unk_token"), -1 if number is None else number)

    def encode(self, texts: list[str]) -> list[TokenIds]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids]))

    def token_bytes(self) -> NDArray[np.int64]:
        content = json.loads(self.json)
        byte_level = '"ByteLevel"' in canonical([content.get("pre_tokenizer"), content.get("decoder")])
        added = {entry["id"]: entry for entry in content.get("added_tokens", [])}
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, i in self._ids.items():
            if i == self.eos or (i in added and added[i]["special"]):
                continue
            if i in added:
                lengths[i] = len(token.encode())
            elif byte_level:
                lengths[i] = len(token)  # each character of the byte-level alphabet stands for one byte
            elif BYTE_TOKEN.fullmatch(token):
                lengths[i] = 1
            else:  # measured after itself: decoders drop the space in front of a text's first token
                once, twice = self._tokenizer.decode([i]), self._tokenizer.decode([i, i])
                lengths[i] = len(twice.encode()) - len(once.encode())
        return lengths


def load_tokenizer(
    spec: str, source: Source, vocab_size: int, cache: Path | None = None, mask: bool = False
) -> Tokenizer:
    """Load ``byte``, ``bpe`` (trained on the train text of `source`, cached), a ``tokenizer.json``, or ``owner/name``:
    that of a model on the Hugging Face Hub, where there is a network or it was loaded before.

    `vocab_size` is the model's: ``bpe`` fills it exactly, the others must not exceed it (`DataError`). A file
    may be compressed (``.gz``, ``.xz``). mask: with a mask token, which ``bpe`` has among its ids and the others get
    after theirs if they have none.
    """
    if source.spans:
        if spec not in ("bpe", "none"):
            raise DataError(f"{source.name} holds token ids: they need no tokenizer, leave {spec} out")
        return Tokenizer(vocab_size)
    if spec == "bpe":
        tokenizer = load_bpe(source, vocab_size, cache or cache_folder(), [END, *([MASK] if mask else [])])
    else:
        text = BYTE_JSON if spec == "byte" else read_bytes(find_tokenizer(spec)).decode(errors="replace")
        if text.startswith(NONE):
            return Tokenizer(vocab_size)
        tokenizer = ByteTokenizer() if text == BYTE_JSON else FileTokenizer(Path(spec).name.split(".")[0], text)
    if mask and tokenizer.mask is None:
        tokenizer = add_mask(tokenizer)
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"tokenizer has {tokenizer.vocab_size} ids but the model's vocabulary is {vocab_size}: "
            f"set --model.vocab_size {tokenizer.vocab_size} (of geonorm data --vocab-size)"
        )
    return tokenizer


def load_bpe(source: Source, vocab_size: int, cache: Path, special: list[str]) -> Tokenizer:
    """The BPE of a source from the cache, or trained and written to it. A damaged one is made anew."""
    name, parts = f"bpe-{vocab_size}", [f"bpe {BPE_FORMAT} {source.fingerprint} {vocab_size}", *special[1:]]
    folder = cache / "tokenizers" / hashlib.sha256(" ".join(parts).encode()).hexdigest()
    file, checksum = folder / "tokenizer.json", folder / "sha256"
    if file.is_file() and checksum.is_file() and read_bytes(checksum).decode(errors="replace") == sha256_of(file):
        return FileTokenizer(name, read_bytes(file).decode())
    with write_errors(cache):
        shutil.rmtree(folder, ignore_errors=True)
        text = train_bpe(source, vocab_size, special)
        source.check_unchanged()
        with new_folder(folder) as temporary:
            (temporary / file.name).write_text(text, encoding="utf-8")
            (temporary / checksum.name).write_text(hashlib.sha256(text.encode()).hexdigest(), encoding="utf-8")
    return FileTokenizer(name, text)


def find_tokenizer(spec: str) -> Path:
    """The tokenizer.json of a path, a folder, or a model on the Hub: from the Hub's own cache where it is there."""
    path = Path(os.path.expanduser(spec))
    if path.exists() or not HUB_NAME.fullmatch(spec):
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.exists():
            known = nearest(spec, ["byte", "bpe"])
            raise DataError(f"no tokenizer '{path}': {known or 'give byte, bpe or the path of a tokenizer.json'}")
        return path
    hub = import_extra("huggingface_hub", f"'{spec}' is no file; a tokenizer of the Hugging Face Hub", "hf")
    try:
        if not isinstance(file := hub.try_to_load_from_cache(spec, "tokenizer.json"), str):
            hub.HfApi().model_info(spec, timeout=5)  # seconds; a download tries a Hub out of reach for half a minute
            file = hub.hf_hub_download(spec, "tokenizer.json", etag_timeout=5)
    except Exception as error:  # the library raises a dozen kinds for network, names and permissions
        raise DataError(
            f"no tokenizer '{spec}' here, and the Hugging Face Hub gave none ({type(error).__name__}: "
            f"{cause(error)[:160]}): check the name and the network, or give the path of a tokenizer.json"
        ) from error
    return Path(file)


def add_mask(tokenizer: Tokenizer) -> FileTokenizer:
    """The tokenizer with an id for a mask token after all others. DataError where its ids have a hole: the library
    would give the new token the id of another."""
    library: Any = import_extra("tokenizers", "masked language modelling", "train").Tokenizer.from_str(tokenizer.json)
    known: dict[str, int] = library.get_vocab()
    library.add_special_tokens([MASK])
    if (new := library.token_to_id(MASK)) in known.values():
        raise DataError(
            f"{tokenizer.name}: mask would get the id {new} of another token, as its ids are not 0 to "
            f"{len(known) - 1}: add the token to tokenizer.json"
        )
    return FileTokenizer(f"{tokenizer.name}+mask", library.to_str())


def train_bpe(source: Source, vocab_size: int, special: list[str]) -> str:
    """Train a byte-level BPE with GPT-2's pre-tokenizer and return its JSON, which depends on the text alone. special:
    special tokens, which get the first ids."""
    library = import_extra("tokenizers", "tokenizer 'bpe'", "train")
    level = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = level(add_prefix_space=False), library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=special,
        initial_alphabet=sorted(level.alphabet()),
    )  # fmt: skip

    def beginning() -> Iterator[str]:
        for part, weight in zip(source.parts or [source], source.weights or [1.0], strict=True):
            left = round(BPE_CHARACTERS * weight / sum(source.weights or [1.0]))
            for text in part.documents("train"):
                yield text[:left]
                left -= len(text)
                if left <= 0:
                    break

    tokenizer.train_from_iterator(beginning(), trainer)
    if (size := tokenizer.get_vocab_size()) != vocab_size:
        raise DataError(
            f"{source.name} gives {size} BPE ids, not {vocab_size}: set --model.vocab_size {size}"
            + (" or give more text" if size < vocab_size else "")
        )
    return str(tokenizer.to_str())


def canonical(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def byte_json() -> str:
    """The byte tokenizer as the ``tokenizer.json`` of a byte-level BPE without merges."""
    # byte-level tokenizers write each byte as a printable character, those that are none as the next beyond 255
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {byte: 256 + n for n, byte in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256, "content": END, **flags}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {chr(codes[byte]): byte for byte in range(256)} | {END: 256}, "merges": []},
    }
    return json.dumps(content)


BYTE_JSON = byte_json()
