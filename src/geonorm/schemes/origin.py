"""Where the parts of a scheme come from, as far as that is not this package."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from .. import elsewhere
from .base import INTERFACE, Scheme


def schemes_in(scheme: Scheme) -> Iterator[type[Scheme]]:
    """The class of a scheme, and those of the schemes in its fields.

    >>> [kind.__name__ for kind in geonorm.schemes.schemes_in(geonorm.parse("mix(post, pre)"))]
    ['Mix', 'Post', 'Pre']
    """
    yield type(scheme)
    for f in fields(scheme):
        value = getattr(scheme, f.name)
        if isinstance(value, Scheme):
            yield from schemes_in(value)


def sources_of(scheme: Scheme) -> dict[str, dict[str, Any]]:
    """What is kept of the schemes from elsewhere in a scheme, by place: sha256, version of the interface, source.
    Empty for the schemes of this package; without a source where there is none, as at the prompt of Python.

    >>> geonorm.schemes.sources_of(geonorm.parse("geonorm"))  # of this package: nothing to keep
    {}
    """
    sources = {}
    for kind in schemes_in(scheme):
        if kind.__module__.partition(".")[0] != elsewhere.OURS:
            source = elsewhere.source_of(kind)
            sha256 = None if source is None else elsewhere.digest(source)
            sources[elsewhere.place_of(kind)] = {"sha256": sha256, "interface": INTERFACE, "source": source}
    return sources


def stored(text: str, sources: Mapping[str, Any] | None, where: str) -> elsewhere.Stored:
    """A scheme's text with the sources that a folder keeps of it, in the form of `sources_of`.

    >>> print(geonorm.parse(geonorm.schemes.stored("geonorm(alpha=2.0)", None, "config.yaml")))
    geonorm(alpha=2)
    """
    texts = {place: about["source"] for place, about in (sources or {}).items() if about.get("source")}
    return elsewhere.Stored(text, texts, where)
