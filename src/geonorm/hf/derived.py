"""Objects of classes that are made when they are needed, of stock ones, and stand in no module under their name."""

from __future__ import annotations

from typing import Any, ClassVar


class Derived:
    """Mixed into such a class, so that its objects are pickled and copied by what makes it."""

    made_by: ClassVar[tuple[Any, ...]]
    """A function, by its module and name, and the stock classes from which it makes the class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if "made_by" not in vars(type(self)):  # of somebody's subclass, which Python finds by its name
            return super().__reduce_ex__(protocol)
        return make_bare, self.made_by, self.__getstate__()


def make_bare(make: Any, *stock: Any) -> Any:
    """An object without its state yet."""
    made = make(*stock)
    return made.__new__(made)
