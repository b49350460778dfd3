"""Give a method the parameters of another one, which are then written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")
Arguments = dict[str, Any]
"""All arguments of a call by name, defaults included. Those of `**options` are a dict of their own, under `options`."""


def like(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[[S, Arguments], R]], Callable[Concatenate[S, P], R]]:
    """Return a decorator that gives a method the parameters of `method`, whose arguments it then gets as one dict.

        @like(SessionHandle.rewind)
        async def rewind(self, given: Arguments) -> Session: ...

    Args:
        method: the method that describes the parameters.
    """
    parameters = signature(method)

    def decorate(function: Callable[[S, Arguments], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(function)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = parameters.bind(self, *args, **kwargs)
            except TypeError as exc:
                raise TypeError(f"{function.__qualname__}: {exc}") from None
            bound.apply_defaults()
            given = bound.arguments
            del given["self"]
            return function(self, given)

        returned = function.__annotations__["return"]
        call.__signature__ = parameters.replace(return_annotation=returned)  # type: ignore[attr-defined]  # PEP 362
        return call

    return decorate
