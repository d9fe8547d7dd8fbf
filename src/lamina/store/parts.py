"""How a store delegates its calls to its parts.

A kind of store is a table: each line names a call of `StoreApi` and the part that implements it.
The type checker compares the part's signature with the one that the API declares.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Part = TypeVar("_Part")


def answered_by(
    attribute: str, method: Callable[Concatenate[_Part, _Given], _Result]
) -> Callable[Concatenate[Any, _Given], _Result]:
    """Makes a method of a store that calls the same one of the part in an attribute of it."""
    find = operator.attrgetter(f"{attribute}.{method.__name__}")

    @functools.wraps(method)
    def call(store: Any, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        found: Callable[_Given, _Result] = find(store)
        return found(*given, **named)

    return call
