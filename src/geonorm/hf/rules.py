"""The residual rule of a family or checkpoint with its numbers: how far each sub-layer turns the stream, and how much
of the last state is its own, and the entry's.

The rule is that of a tiny model with the same configuration, recognised and verified on numbers (`scheme_of`). What a
checkpoint learned, gates, scalars, gains, is read by range from its safetensors: vectors alone, a layer at a time, so
that a checkpoint of any size takes a few MB. Matrices are not read: weights that depend on the token are at what they
are without it.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch
from huggingface_hub import constants, get_token, hf_hub_url
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..errors import ConfigError, DataError, cause
from ..measure.anatomy import Stack, Sublayer, stacks_by_name
from ..measure.load import check_name
from ..measure.rebuild import carry
from ..measure.recognise import Replay, recognise
from ..residual import Residual
from ..schemes import Site, parse
from .tiny import default_config, families, tiny

Names = Mapping[str, tuple[str, int]]
"""Of the vectors that the rule of a block may learn, by path: the end of the name in a checkpoint, {} where the number
of the block stands, and what is added to that (the queries of Inkling-2's attention begin with its second block)."""
Block = tuple[int, Mapping[str, Tensor]]
"""Of a block: which of the tiny model's it is like, and the vectors that it learned, by path."""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WIDTH = 64
"""At which a rule is followed without a checkpoint: at the start all channels are alike."""
MOST_HEADER_BYTES = 10**8
"""Bytes of a header of a safetensors file; a vector has fewer."""


@dataclass(frozen=True)
class Rule:
    """The residual rule of a family, or of a checkpoint with what it learned.

    sublayers: of each layer, kind, t; angle, the degrees by which it turns the stream, for an update at right angles to
    it; stream and update, the factors of both (root mean square over channels); share of the squared length of the last
    state, which is the sum of all slots of attention residuals; there query, the lengths of the learned queries: with
    values=norm no slot weighs more than exp(2 query) times another. entry: the share of the entry, whose root mean
    square is taken to be 1. unit: True where the rule normalises updates; else all are taken for as long as the entry.

    >>> from geonorm import hf
    >>> beam = hf.rule_of("beam")
    >>> beam.scheme, len(beam.sublayers), round(1 / beam.entry)
    ('beam(entry=embedding)', 104, 105)
    """

    model: str
    family: str
    scheme: str
    equation: str
    law: str
    """Of speed and radius, or why there is none."""
    sublayers: list[dict[str, Any]]
    entry: float
    unit: bool


def rule_of(model: str) -> Rule:
    """The residual rule of a type of model (beam), as it begins, or of a checkpoint: a folder, a safetensors file with
    config.json beside it, the URL of either, or a name on the hub. GeonormError or OSError, one line.

    >>> from geonorm import hf
    >>> hf.rule_of("llama").scheme
    'pre(entry=embedding)'
    """
    if model in CONFIG_MAPPING:
        config = default_config(model)
        stack, _ = read_family(config)
        kinds = len(stack.layers) or 1
        return follow_factors(
            model, config, WIDTH, stack, ((layer % kinds, {}) for layer in range(config.num_hidden_layers))
        )
    base, _, file = model.rpartition("/") if model.endswith(".safetensors") else (model.rstrip("/"), "", "")
    if not ("://" in model or Path(model).exists()):
        check_name(model)
        base = hf_hub_url(model, "config.json").rpartition("/")[0]
    base = base or "."
    settings = read_json(f"{base}/config.json")
    if (family := str(settings.get("model_type"))).startswith("geonorm") or family not in CONFIG_MAPPING:
        raise ConfigError(f"{model}: {family!r} is no type of model of transformers itself")
    config = CONFIG_MAPPING[family].from_dict(settings).get_text_config()
    stack, names = read_family(config)
    return follow_factors(model, config, config.hidden_size, stack, read_blocks(base, file, config, names))


def read_rules(models: Sequence[str], progress: Callable[[str, float], object]) -> list[dict[str, Any]]:
    """What is known of models, or of every causal family where none is named, as rows of the register; a family whose
    rule is not known says why."""
    rows: list[dict[str, Any]] = []
    listed = models or families()
    for number, model in enumerate(listed):
        progress(model, number / len(listed))
        try:
            rows.append(asdict(rule_of(model)))
        except Exception as error:  # of transformers, too
            if models:
                raise
            rows.append({"model": model, "refused": cause(error)})
    return rows


def read_family(config: Any) -> tuple[Stack, list[Names]]:
    """The stack of a tiny model with this configuration, and what the vectors of its blocks are called."""
    model: Any = tiny(config)
    stack, *_ = stacks_by_name(model.config) or [recognise(model)]
    path = next(name for name, _ in model.named_modules() if f".{name}".endswith(f".{stack.blocks}"))
    tensors, ends = {**dict(model.named_parameters()), **dict(model.named_buffers())}, list[Names]()
    for layer, sublayers in enumerate(stack.layers or (stack.sublayers,)):
        vectors = {place: f"{path}.{layer}.{place}" for each in sublayers for place, _ in learned(each, stack).values()}
        stored = {place: next(iter(revert_weight_conversion(model, {name: tensors[name]})))
                  for place, name in vectors.items()
                  if name in tensors and math.prod(tensors[name].shape[:-1]) < 4}  # fmt: skip
        pieces = {place: re.split(r"\b(\w+\.)(\d+)(?=\.|$)", name, maxsplit=1)[1:] for place, name in stored.items()}
        ends.append({place: (f"{of}{{}}{rest}", int(number) - layer) for place, (of, number, rest) in pieces.items()})
    return stack, ends


def learned(sublayer: Sublayer, stack: Stack) -> dict[str, Sequence[str]]:
    """What a sub-layer's rule may learn, gains too, as `Sublayer.carried`."""
    how = "plus 1" if stack.gain_offset else "same"
    weights = {f"{role}.weight": (f"{path}.weight", how) for path, role in sublayer.norms.items()}
    biases = {f"{role}.bias": (f"{path}.bias", "same") for path, role in sublayer.norms.items()}
    return {**weights, **biases, **sublayer.carried}


@torch.no_grad()
def follow_factors(model: str, config: Any, dim: int, stack: Stack, blocks: Iterable[Block]) -> Rule:
    """The rule with its numbers. What a block has not learned begins as the scheme says.

    A state is a sum of parts, the entry and what each sub-layer wrote, at right angles to one another. Tokens with all
    signs of the streams and of the update show what a sub-layer makes of each channel of them.
    """
    depth, scheme = config.num_hidden_layers, parse(stack.scheme or "")
    if hasattr(scheme, "blocks"):  # of as many layers each as in the tiny model
        scheme = replace(scheme, blocks=scheme.blocks * depth // len(stack.layers))  # type: ignore[call-arg]
    n, channels = scheme.streams, torch.arange(dim)
    x, u = 1.0 - channels // 2 % 2 * 2, 1.0 - channels % 2 * 2  # both without a mean, at right angles
    every = range(1 << (n + 1).bit_length())
    hadamard = [[(-1.0) ** (row & column).bit_count() for column in range(n + 2)] for row in every]
    signs = torch.tensor(hadamard)[..., None]
    parts = scheme.enter(torch.ones(1, dim), None, Site(0, "entry", depth)).view(1, n, dim)
    rows, unit = list[dict[str, Any]](), True
    for layer, (kind, vectors) in enumerate(blocks):
        for sublayer in stack.of(kind):
            site = Site(layer, sublayer.kind, depth, stack.count)
            residual = Residual(nn.Identity(), scheme, site, dim, stack.norm, eps=stack.eps)
            mine = dict(residual.own.named_parameters())
            for name, (path, how) in learned(sublayer, stack).items():
                if name in mine and path in vectors:
                    carry(mine[name], vectors[path], how)
            tokens = signs[:, 1:-1] * (lengths := parts.square().sum(0).sqrt()) * x
            update, answers = (sublayer.branches[0].scale or 1.0) * u * signs[:, -1], []
            for times in (1.0, 2.0):
                residual.branch = Replay(times * update)
                out = residual(tokens if n > 1 else tokens[:, 0]).view_as(tokens)
                answers.append(torch.einsum("mk,mjd->kjd", signs[..., 0], out) / len(signs))
            unit &= torch.allclose(answers[0], answers[1], rtol=1e-3, atol=1e-4)
            factors = (answers[0][1:-1] / (lengths * x).unsqueeze(1)).nan_to_num(0.0, 0.0, 0.0)
            before, parts = parts, torch.cat((torch.einsum("kjd,ikd->ijd", factors, parts), answers[0][-1:] * u))
            a, b = (each[:, 0] if n == 1 else scheme.seen(each) for each in (before, parts))
            cosine = float((a * b[:-1]).sum() / (a.norm() * b.norm()))
            rows.append({"layer": layer, "kind": sublayer.kind, "t": layer + 1,
                         "angle": math.degrees(math.acos(min(1.0, cosine))),
                         "stream": float(factors.square().sum(0).mean().sqrt()),
                         "update": float(parts[-1].square().mean().sqrt()),
                         **({"query": mine["recall.query"].norm(dim=-1).tolist()} if "recall.query" in mine else {}),
                         })  # fmt: skip
    entry, *shares = (b.square().sum(-1) / b.square().sum()).tolist()
    rows = [{**row, "share": share} for row, share in zip(rows, shares, strict=True)]
    equation, law = scheme.about.equation, scheme.about.law or f"none: {scheme.about.lawless}"
    return Rule(model, config.model_type, str(scheme), equation, law, rows, entry, unit)


def read_blocks(base: str, file: str, config: Any, ends: list[Names]) -> Iterator[Block]:
    """The vectors of each block of a checkpoint."""
    headers = cache(lambda file: read_json(file, 8, int.from_bytes(read_part(file, 0, 8), "little")))  # entries by name
    try:
        stored = {} if file else read_json(f"{base}/model.safetensors.index.json")["weight_map"]
    except OSError:
        stored = {}
    stored = stored or dict.fromkeys(headers(f"{base}/{file or 'model.safetensors'}"), file or "model.safetensors")
    towers = re.compile(r"vision|visual|audio|mtp")
    names = sorted(stored, key=lambda name: not towers.search(name))  # the last of an end is that of the text model
    by_end = {re.sub(r"^.*?(\w+\.\d+(\.|$))", r"\1", name): name for name in names}
    for layer in range(config.num_hidden_layers):
        wanted = [
            {path: by_end.get(end.format(layer + more), "") for path, (end, more) in each.items()} for each in ends
        ]
        like = [kind for kind, each in enumerate(wanted) if all(each.values())]
        kind = max(like, key=lambda kind: len(wanted[kind]), default=None)
        if kind is None:
            raise DataError(f"{base}: block {layer} has not the vectors {', '.join(ends[0])} of {config.model_type}")
        yield kind, {path: read_vector(f"{base}/{stored[name]}", name, headers) for path, name in wanted[kind].items()}


def read_vector(file: str, name: str, headers: Any) -> Tensor:
    """One vector of a safetensors file, in fp32."""
    entry = headers(file)[name]
    first, last = entry["data_offsets"]
    start = 8 + int.from_bytes(read_part(file, 0, 8), "little")
    content = read_part(file, start + first, last - first)
    return torch.frombuffer(bytearray(content), dtype=DTYPES[entry["dtype"]]).float()


def read_json(place: str, start: int = 0, length: int | None = None) -> dict[str, Any]:
    """The object of JSON in a file or URL, or in a part of it."""
    content = read_part(place, start, length)
    try:
        return dict(json.loads(content))
    except (TypeError, ValueError):
        raise DataError(f"{place} is damaged: no object of JSON where one should be") from None


def read_part(place: str, start: int = 0, length: int | None = None) -> bytes:
    """A file or URL, or a part of it."""
    if length is not None and not 0 < length <= MOST_HEADER_BYTES:
        raise DataError(f"{place} names a part of {length:,} bytes: it is damaged")
    if "://" in place:
        request = Request(place, headers={} if length is None else {"Range": f"bytes={start}-{start + length - 1}"})
        if place.startswith(f"{constants.ENDPOINT}/") and (token := get_token()):
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with urlopen(request, timeout=60) as answer:
            content: bytes = answer.read() if length is None or answer.status == 206 else b""
    else:
        with open(place, "rb") as file:
            file.seek(start)
            content = file.read(length)
    if length is not None and len(content) != length:
        raise DataError(f"{place} gives {len(content):,} of the {length:,} bytes from {start:,} on")
    return content
