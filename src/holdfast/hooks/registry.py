"""The protocol and the registration of hooks, which are called when a session ends."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Any, Final, Protocol, TypeVar, get_args

import anyio.to_thread

from holdfast.domain.session import Ending, EndReason, Entry, Session, SessionRef
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import HOOKS, ID_BYTES
from holdfast.media.outgoing import restore_entries
from holdfast.stores.base import Store
from holdfast.stores.walk import iterate_log_pages


class EndedSession:
    """A session that has ended, as hooks receive it. All of its data can still be read.

    Attributes:
        session: the fields of the session. It has its original id, even if another session has this id now.
        reason: why the session ended.
        delivery_id: identifies this notification. It is the same for every attempt to call a hook, so that receivers can detect duplicates.
        ended_at: time when the session ended, in milliseconds since the epoch.
        attempt: number of this attempt to call the hook, from 1.
    """

    def __init__(self, store: Store, session: Session, ending: Ending) -> None:
        self._store = store
        self._ref: SessionRef = ending.ref
        self.session = session
        self.reason: EndReason = ending.reason
        self.delivery_id = ending.id
        self.ended_at = ending.ended_at
        self.attempt = ending.attempts + 1

    @property
    def tenant(self) -> str:
        """Tenant of the session."""
        return self.session.tenant

    @property
    def user_id(self) -> str:
        """User who owns the session."""
        return self.session.user_id

    @property
    def id(self) -> str:
        """Id of the session."""
        return self.session.id

    async def entries(
        self, *, start: int = 0, retired: bool = False, media: bool = False
    ) -> AsyncGenerator[Entry, None]:
        """Yield the entries of the session's log in order. They are read from the store page by page.

        Args:
            start: `seq` of the first entry.
            retired: True: include entries that an edit or a rewind replaced.
            media: True: include the data of images and other media, which is read entry by entry. False: placeholders describe the media.
        """
        async for page in self.pages(start=start, retired=retired):
            for entry in page:
                yield (await restore_entries(self._store, self._ref, [entry]))[0] if media else entry

    def pages(self, *, start: int = 0, retired: bool = False) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the entries of the session's log in pages; the last page may be empty. The arguments are those of `entries`."""
        return iterate_log_pages(self._store, self._ref, start=start, retired=retired)


class Hook(Protocol):
    """An object that is called when a session ends. If a call raises an exception, the hook is called again later.

    So a hook may be called several times for one session, always with the same `EndedSession.delivery_id`.
    """

    name: str
    """Identifier of the hook. It must stay the same across restarts, because pending calls are recorded under this name."""
    reasons: frozenset[EndReason]
    """The hook is called only for sessions that end for one of these reasons."""

    async def __call__(self, ended: EndedSession) -> Any:
        """Handle a session that has ended. If this raises an exception, it is recorded, and the hook is called again later."""
        ...


HookFunction = Callable[[EndedSession, EndReason], Any]
"""A function that is used as a hook: `callback(session, reason)`. It is plain or async."""
F = TypeVar("F", bound=HookFunction)
ENDS: Final[frozenset[EndReason]] = frozenset({"ttl", "cap", "delete", "close"})
"""Default reasons of a hook: all reasons except `shutdown`, which ends no session."""


class CallbackHook:
    """A hook that calls a function. A plain function runs in a thread; it can use `anyio.from_thread.run` to run async functions.

    Args:
        function: function to call with the session and the reason.
        name: identifier of the hook; see `Hook.name`.
        reasons: as in `Hook.reasons`.
    """

    def __init__(self, function: HookFunction, name: str, reasons: frozenset[EndReason]) -> None:
        self.name = name
        self.reasons = reasons
        self._function = function

    async def __call__(self, ended: EndedSession) -> None:
        if _is_async(self._function):
            await self._function(ended, ended.reason)
            return
        call = functools.partial(self._function, ended, ended.reason)
        result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        if inspect.isawaitable(result):
            await result


class HookRegistry:
    """All hooks of one `Holdfast`, in order of registration."""

    def __init__(self) -> None:
        self._hooks: dict[str, Hook] = {}
        self.on_added: Callable[[], object] = lambda: None
        """Called whenever a hook is added."""

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: Hook) -> None:
        """Register a hook.

        The hook is called for sessions that end from this time, and for earlier ones whose notification of a hook with this name is pending.

        Raises:
            InvalidRequest: the hook's name is invalid or taken, a reason is unknown, or there are too many hooks.
        """
        _check_hook(getattr(hook, "name", None), getattr(hook, "reasons", ()))
        if hook.name in self._hooks:
            raise InvalidRequest(f"a hook named {hook.name!r} is registered already: use another name", param="name")
        if len(self._hooks) == HOOKS:
            raise InvalidRequest(f"there are {HOOKS} hooks already, which is the limit", param="name")
        self._hooks[hook.name] = hook
        self.on_added()

    def get(self, name: str) -> Hook | None:
        """Return the hook with this name; None if there is no such hook."""
        return self._hooks.get(name)

    def get_names_for(self, reason: EndReason) -> tuple[str, ...]:
        """Return the names of the hooks that are called for sessions that end for this reason, in the order of registration."""
        return tuple(name for name, hook in self._hooks.items() if reason in hook.reasons)


def make_callback_hook(function: HookFunction, name: str | None, reasons: Collection[EndReason]) -> CallbackHook:
    """Return a hook that calls a function.

    Args:
        function: function to call with the session and the reason.
        name: name of the hook; None: the name of the function.
        reasons: as in `Hook.reasons`.

    Raises:
        InvalidRequest: `function` does not take a session and a reason; or `name` is None, and `function` has no stable name of its own.
    """
    if not callable(function):
        raise InvalidRequest(f"a hook must be a function, not {type(function).__name__}", param="callback")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as exc:
        message = "a hook must accept two arguments, the session and the reason"
        raise InvalidRequest(message, param="callback") from exc
    except ValueError:  # a function of a C extension, without a signature
        pass
    name = _derive_name(function) if name is None else name
    _check_hook(name, reasons)
    return CallbackHook(function, name, frozenset(reasons))


def _derive_name(function: HookFunction) -> str:
    qualified = getattr(function, "__qualname__", None)
    if not isinstance(qualified, str) or "<lambda>" in qualified:
        raise InvalidRequest(
            "this hook has no stable name, under which pending deliveries could be recorded: give it one with name=",
            param="name",
        )
    return f"{getattr(function, '__module__', None) or ''}.{qualified}"


def _check_hook(name: object, reasons: Collection[object]) -> None:
    try:
        size = len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= ID_BYTES:
        raise InvalidRequest(f"a hook's name must have 1 to {ID_BYTES} bytes of valid Unicode", param="name")
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
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # for a callable object


def describe_failure(error: BaseException) -> str:
    """Return the type and the message of an exception that a hook raised, as a short text."""
    words = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())
