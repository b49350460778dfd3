"""Who is told of ends: hooks in order of registration, and functions that become one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar, get_args

import anyio.to_thread

from holdfast.domain.session import EndReason
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.hooks.base import EndedSession, Hook, Keeper, Observer
from holdfast.limits import HOOKS, ID_BYTES

Told = Callable[[EndedSession, EndReason], Any]
"""A function that is told: `callback(session, reason)`, plain or async."""
F = TypeVar("F", bound=Told)
ENDS: Final[frozenset[EndReason]] = frozenset({"ttl", "cap", "delete", "close"})
"""What a hook is told of unless it says otherwise: all but `shutdown`, which ends no session."""


class Callback:
    """A function as a hook. A plain one is called in a thread; `anyio.from_thread.run` awaits from there.

    Args:
        function: called with the session and the reason.
        name: see `Hook`.
        reasons: see `Hook`.
    """

    def __init__(self, function: Told, name: str, reasons: frozenset[EndReason]) -> None:
        self.name = name
        self.reasons = reasons
        self._function = function

    async def __call__(self, ended: EndedSession) -> None:
        """See `Hook`."""
        if _is_async(self._function):
            await self._function(ended, ended.reason)
            return
        call = functools.partial(self._function, ended, ended.reason)
        result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        if inspect.isawaitable(result):
            await result


class Hooks:
    """All hooks of one `Holdfast`, in order of registration."""

    def __init__(self) -> None:
        self._hooks: dict[str, Hook] = {}
        self._heard: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: Hook) -> None:
        """Tell `hook` of ends from now on, and of those of which it was still to be told.

        Raises:
            InvalidRequest: its name is none, or taken, or a reason is unknown; or there are too many.
        """
        _check(getattr(hook, "name", None), getattr(hook, "reasons", ()))
        if hook.name in self._hooks:
            raise InvalidRequest(
                f"a hook {hook.name!r} is registered already: give this one another name", param="name"
            )
        if len(self._hooks) == HOOKS:
            raise InvalidRequest(f"there are {HOOKS} hooks already, which is as many as there may be", param="name")
        self._hooks[hook.name] = hook
        for heard in self._heard:
            heard()

    def get(self, name: str) -> Hook | None:
        """The hook of that name."""
        return self._hooks.get(name)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that follow what is written, too."""
        return tuple(hook for hook in self._hooks.values() if isinstance(hook, Observer))

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """Those that keep something of sessions elsewhere."""
        return tuple(hook for hook in self._hooks.values() if isinstance(hook, Keeper))

    def wanting(self, reason: EndReason) -> tuple[str, ...]:
        """The names of those that are told of ends for that reason, in order."""
        return tuple(name for name, hook in self._hooks.items() if reason in hook.reasons)

    def on_add(self, heard: Callable[[], None]) -> None:
        """Call `heard` whenever a hook has come."""
        self._heard.append(heard)


def callback(function: Told, name: str | None, reasons: Collection[EndReason]) -> Callback:
    """A function as a hook, under its qualified name unless another one is given.

    Raises:
        InvalidRequest: it is no function of a session and a reason, or has no name of its own that could stay the same.
    """
    if not callable(function):
        raise InvalidRequest(f"a hook is a function, not {type(function).__name__}", param="callback")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as exc:
        message = "a hook is called with two arguments, the session and the reason: this one cannot be"
        raise InvalidRequest(message, param="callback") from exc
    except ValueError:  # a function of an extension, which does not tell
        pass
    name = _name_of(function) if name is None else name
    _check(name, reasons)
    return Callback(function, name, frozenset(reasons))


def _name_of(function: Told) -> str:
    qualified = getattr(function, "__qualname__", None)
    if not isinstance(qualified, str) or "<lambda>" in qualified:
        raise InvalidRequest(
            "this hook has no name of its own, by which what is left to be told could be recorded: give it one with name=",
            param="name",
        )
    return f"{getattr(function, '__module__', None) or ''}.{qualified}"


def _check(name: object, reasons: Collection[object]) -> None:
    try:
        size = len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= ID_BYTES:
        raise InvalidRequest(f"a hook's name has 1 to {ID_BYTES} bytes of Unicode", param="name")
    if isinstance(reasons, str) or not isinstance(reasons, Collection):
        raise InvalidRequest(f"reasons must be a list, not {type(reasons).__name__}", param="reasons")
    unknown = sorted(str(reason) for reason in reasons if reason not in get_args(EndReason))
    if unknown or not reasons:
        known = ", ".join(get_args(EndReason))
        raise InvalidRequest(f"reasons must be some of {known}, not {', '.join(unknown) or 'none'}", param="reasons")


def _is_async(function: Any) -> bool:
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # of an object that can be called


def told_of(error: BaseException) -> str:
    """Why a hook failed, in short: what kind of error, and its words."""
    words = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())
