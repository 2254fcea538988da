"""What all that a report is about has in common: series, and how each of them looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from .style import Look, looks


@dataclass(frozen=True)
class SavedStudy:
    """A comparison, a simulation or a probe, as its directory has it."""

    styles: Mapping[str, Look] = field(default_factory=dict, kw_only=True)
    """Looks of all that the page shows, where that is more than this."""

    @property
    def names(self) -> list[str]:
        """Its series in their order: schemes, of a probe models."""
        raise NotImplementedError

    @property
    def keys(self) -> dict[str, str]:
        """Of each series, what it is shown as."""
        return {name: name for name in self.names}

    @property
    def looks(self) -> dict[str, Look]:
        styles = self.styles or looks(list(self.keys.values()))
        return {name: styles[key] for name, key in self.keys.items()}

    def only(self, names: Sequence[str], sort: str | None = None) -> Self:
        """These series alone, in this order; all of them where none is named. `sort="loss"`: the best first, where
        losses are compared."""
        raise NotImplementedError
