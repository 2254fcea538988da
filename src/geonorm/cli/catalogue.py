"""Text about schemes, generated from the registry: tables for the terminal, and JSON."""

import json
import re
import shlex
from math import isfinite
from typing import Any

import torch

from ..dynamics import radial_rate, speed, theory
from ..models.init import ROLES, SLOTS
from ..norms import NormSpec
from ..schemes import Parts, Scheme, Site, find, names, parse, slots_at
from ..schemes.grammar import takes_scheme
from ..schemes.registry import format_value
from ..settings import describe_type, docs, hints

DEPTH, DIM, HEADS = 12, 64, 4
"""The model that initial values are stated for: 12 blocks, width 64, 4 heads."""
PARTICLES = 32
"""Tokens of the prediction of the initial velocity."""
LIMIT = "one attention for each t, Q = K = V = I, equal radii, continuous time"
"""What the last law is said of: other radii, weights, whole layers and blocks of several sub-layers have others."""
NOTES = "x stream, u(y) output of the sub-layer that reads y, N norm, v part of u tangential to x, t = layer + 1"


def look_up(name: str) -> dict[str, Any]:
    """Everything the registry knows about a scheme. ConfigError with the nearest name if there is none."""
    scheme = parse(name)
    cls = type(scheme)
    return {
        "name": name,
        "title": re.split(r"(?<=\.)\s", " ".join((cls.__doc__ or "").split()), maxsplit=1)[0],
        "equation": scheme.about.equation,
        "source": scheme.about.source,
        "claim": scheme.about.claim,
        "checked": scheme.about.checked,
        "shipped": scheme.about.shipped,
        "streams": scheme.streams,
        "planar": scheme.planar,
        "fields": {
            key: {
                "default": format_value(value) if isinstance(value := getattr(scheme, key), (float, Scheme)) else value,
                "values": "a scheme" if takes_scheme(hint) else describe_type(hint, between=" | "),
                "meaning": docs(cls).get(key, ""),
            }
            for key, hint in hints(cls).items()
        },
        "initial_scalars": initial_scalars(scheme),
        "initial_std": initial_std(scheme),
        "motion": measure_motion(scheme),
        "theory": predict(scheme),
        "own_recipe": scheme.recipe(),
    }


def initial_scalars(scheme: Scheme) -> dict[str, str]:
    """Learned vectors and scalars that a model gets from the scheme, by where they stand, with their initial values."""
    scalars: dict[str, str] = {}
    for layer, kind in ((0, "entry"), (1, "attn"), (1, "mlp"), (DEPTH - 1, "exit")):
        site = Site(layer, kind, DEPTH)
        part = scheme.resolve(site)
        shape = (HEADS, DIM // HEADS) if kind == "attn" else (4 * DIM,)
        slots = slots_at(part, dict.fromkeys(SLOTS.get(kind, ()), shape), DIM, site)
        for module in (Parts(part, site, NormSpec("rms", DIM)), slots):
            for name, value in module.named_parameters():
                scalars[f"{kind}.{name}"] = summary(value)
    return scalars


def summary(value: torch.Tensor) -> str:
    """Initial value of a parameter, in words."""
    shape = "scalar" if value.shape in ((), (1,)) else " x ".join(map(str, value.shape))
    low, high = value.min().item(), value.max().item()
    return f"{low:.4g} ({shape})" if low == high else f"{low:.4g} to {high:.4g} ({shape})"


def initial_std(scheme: Scheme) -> dict[str, float]:
    """Initial standard deviation over the base by role in block 2 of 12, where it is not 1."""
    ratios = {}
    for role in ROLES:
        kind = ROLES[role].end or ("mlp" if role in ("up", "gate", "down") else "attn")
        site = Site({"entry": 0, "exit": DEPTH - 1}.get(kind, 1), kind, DEPTH)
        ratio = scheme.resolve(site).init_std(role, DIM, DIM, site, 1.0)
        if ratio != 1.0:
            ratios[role] = round(ratio, 4)
    return ratios


def measure_motion(scheme: Scheme) -> dict[str, float | str] | str:
    """What the definition does to direction and radius of one token: the speed factor s (theta' = P(A)/s) and the
    radius law r' in blocks 1 and 4 of 12 at r = 1, |A| = 1/2, <theta, A> = 0.3; or why there is no such law."""
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    u = torch.tensor([0.3, 0.4], dtype=torch.float64)
    motion: dict[str, float | str] = {}
    for t in (1, 4):
        site = Site(float(t - 1), "attn", DEPTH)
        part = scheme.resolve(site)
        if not part.planar:
            return part.about.lawless or "its step does not stay in the plane of x and u"
        slowness = speed(part, x, u, site).item()
        motion[f"s(t={t})"] = round(slowness, 6) if isfinite(slowness) else "infinite"
        motion[f"r'(t={t})"] = round(radial_rate(part, x, u, site).item(), 6) + 0.0
    return motion


def predict(scheme: Scheme) -> dict[str, float | str | None] | None:
    """What mathematics says of the scheme (`dynamics.theory`, docs/theory.md): the formula for s and r', gamma'(0) of
    32 orthonormal tokens at beta = 1, and how 1 - cos falls at last (`LIMIT`); in a network of 12 blocks. None without
    a law."""
    if not scheme.planar:
        return None
    return {
        "law": theory.describe_law(scheme),
        "initial_velocity": float(f"{theory.initial_velocity(scheme, PARTICLES, 1.0, DEPTH):.4g}"),
        "terminal": str(late := theory.terminal(scheme, DEPTH)),
        "terminal_why": late.why or None,
        "terminal_causal": str(theory.terminal(scheme, DEPTH, causal=True)),
    }


def catalogue() -> str:
    """One line per scheme."""
    rows = [(name, find(name).about.equation) for name in names()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {equation}" for name, equation in rows]
    return "\n".join([*lines, "", NOTES, "geonorm schemes NAME: source, fields, values, what it does to a token"])


def describe_scheme(name: str) -> str:
    """All about one scheme."""
    about = look_up(name)
    scheme = parse(name)
    generic = "" if scheme == type(scheme)() else "    (without fields; what the fields change stands below)"
    first = (about["title"], about["equation"] and about["equation"] + generic, about["source"])
    lines = [name, *(f"  {text}" for text in first if text)]
    evidence = {"reported": about["claim"], "checked against": about["checked"], "shipped in": about["shipped"]}
    more = {
        "direction and radius": format_motion(about["motion"]),
        "theory": about["theory"] and format_theory(about["theory"]),
        f"initial standard deviation over the base, block 2 of {DEPTH}": join_pairs(about["initial_std"]),
        "learned vectors and scalars at first": join_pairs(about["initial_scalars"]),
        "own recipe": join_pairs(about["own_recipe"]),
    }
    lines += [f"  {title}: {text}" for title, text in evidence.items() if text]
    lines.append("  fields:")
    lines += [f"    {key} = {field['default']}    {field['values']}" for key, field in about["fields"].items()]
    lines += [f"  {title}: {text}" for title, text in more.items() if text]
    lines.append(f"  how it moves a token, as a picture: geonorm schemes {shlex.quote(name)} --out FOLDER")
    return "\n".join(lines)


def format_motion(motion: dict[str, float | str] | str) -> str:
    if isinstance(motion, str):
        return f"no law: {motion}"
    return f"{join_pairs(motion)} at r = 1, |A| = 1/2, <theta, A> = 0.3"


def format_theory(theory: dict[str, float | str | None]) -> str:
    law = f"{theory['law']} with A = u(read(x)); " if theory["law"] else ""
    full, causal = theory["terminal"], theory["terminal_causal"]
    late = "follows no closed law" if full == "none" else f"falls as {full} (causal: {causal})"
    start = f"cos' = {theory['initial_velocity']:g} at first ({PARTICLES} orthonormal tokens, beta = 1)"
    why = f": {theory['terminal_why']}" if full == "none" else ""
    return f"{law}{start}; 1 - cos {late} at last ({LIMIT}){why}"


def join_pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def json_text(name: str | None) -> str:
    about = look_up(name) if name else [look_up(each) for each in names()]
    return json.dumps(about, indent=1, allow_nan=False)
