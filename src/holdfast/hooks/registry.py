"""Protocols and registration of hooks and observers, and the store that reports writes to observers.

A hook is called when a session ends. An observer is called when a session is written.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol, Self, TypeVar, get_args, runtime_checkable

import anyio.to_thread

from holdfast.domain.session import Ending, EndReason, Entry, NewEntry, RemovalCounts, Session, SessionRef
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import HOOKS, ID_BYTES, PAGE
from holdfast.media.outgoing import restore_entries
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

Change = Literal["annotated", "erased", "replaced", "deleted"]
"""Kind of change of a stored session, other than an append.

- `annotated`: the pin or the importance of an entry was changed.
- `erased`: the content of an entry was erased.
- `replaced`: the whole session was replaced.
- `deleted`: the session was deleted.
"""


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

    async def entries(self, *, start: int = 0, retired: bool = False, media: bool = False) -> AsyncIterator[Entry]:
        """Yield the entries of the session's log in order. They are read from the store page by page.

        Args:
            start: `seq` of the first entry.
            retired: True: include entries that an edit or a rewind replaced.
            media: True: include the data of images and other media, which is read entry by entry. False: placeholders describe the media.
        """
        while True:
            page = await self._store.entries(self._ref, start=start, limit=PAGE, retired=retired)
            for entry in page:
                yield (await restore_entries(self._store, self._ref, [entry]))[0] if media else entry
            if len(page) < PAGE:
                return
            start = page[-1].seq + 1


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


@runtime_checkable
class Keeper(Protocol):
    """A hook or observer that keeps copies of sessions outside the store, and can delete them."""

    async def forget(self, tenant: str, user_id: str, session_id: str) -> int:
        """Delete all copies of sessions that now have, or once had, this user and id. Return the number of deleted files."""
        ...

    async def forget_user(self, tenant: str, user_id: str) -> int:
        """Delete all copies of a user's sessions, including copies of deleted sessions. Return the number of deleted files."""
        ...


@runtime_checkable
class Observer(Protocol):
    """An object that `ObservedStore` notifies of each write to a session. Its work must not delay the write."""

    def begin(self, store: Store) -> None:
        """Begin to observe a store. Called in a running event loop. Raise an exception if the observer cannot be used."""
        ...

    def on_append(self, tenant: str, ref: SessionRef, appended: Appended) -> None:
        """Handle entries that were appended. This method must return at once and never raise; slow work belongs in a task."""
        ...

    def before_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """Handle a change that is about to be made. `after_change` follows, unless the process ends. The rules of `on_append` apply."""
        ...

    def after_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """Handle a change that has succeeded or failed; read the store to find out which. The rules of `on_append` apply."""
        ...

    async def close(self) -> None:
        """Finish all work that the observer has begun."""
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
        self._listeners: list[Callable[[], None]] = []

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
        for listener in self._listeners:
            listener()

    def get(self, name: str) -> Hook | None:
        """Return the hook with this name; None if there is no such hook."""
        return self._hooks.get(name)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Hooks that are also observers."""
        return tuple(hook for hook in self._hooks.values() if isinstance(hook, Observer))

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """Hooks that keep copies of sessions outside the store."""
        return tuple(hook for hook in self._hooks.values() if isinstance(hook, Keeper))

    def get_names_for(self, reason: EndReason) -> tuple[str, ...]:
        """Return the names of the hooks that are called for sessions that end for this reason, in the order of registration."""
        return tuple(name for name, hook in self._hooks.items() if reason in hook.reasons)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Register a function that is called whenever a hook is added."""
        self._listeners.append(listener)


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


class ObservedStore(StoreWrapper):
    """A store wrapper that notifies observers of every write. Observers return at once, so no write waits for them.

    Args:
        inner: the store that does the work.
        observers: the observers. They are notified in this order, of the writes of all tenants.
    """

    def __init__(self, inner: Store, observers: Sequence[Observer]) -> None:
        super().__init__(inner)
        self._observers = tuple(observers)

    def wrap(self, inner: Store) -> Self:
        """Return a wrapper with the same observers around another handle of the store."""
        return type(self)(inner, self._observers)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        appended = await self.inner.append(ref, write)
        self._report_append(ref, write, appended)
        return appended

    def note_append(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        super().note_append(ref, write, appended)
        self._report_append(ref, write, appended)

    def _report_append(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        # A write may retire entries without adding any.
        if write.entries or write.retire_from is not None:
            for observer in self._observers:
                observer.on_append(self.tenant, ref, appended)

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        with self._report_change(new.ref, "replaced"):
            return await self.inner.replace(new, entries, **more)

    async def fork(self, new: NewSession, source: Session, stop: int, *, pins: bool = True) -> Session | None:
        with self._report_change(new.ref, "replaced"):
            return await self.inner.fork(new, source, stop, pins=pins)

    async def annotate(self, ref: SessionRef, seq: int, **changes: Any) -> Entry:
        with self._report_change(ref, "annotated"):
            return await self.inner.annotate(ref, seq, **changes)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        with self._report_change(ref, "erased"):
            return await self.inner.erase(ref, seq, tokens=tokens)

    async def remove(self, ref: SessionRef, **expected: int | None) -> RemovalCounts | None:
        if ref.withdrawn:
            return await self.inner.remove(ref, **expected)
        with self._report_change(ref, "deleted"):
            return await self.inner.remove(ref, **expected)

    @contextmanager
    def _report_change(self, ref: SessionRef, how: Change) -> Iterator[None]:
        """Notify observers before the block, because the process may end during the block, and again after it."""
        for observer in self._observers:
            observer.before_change(self.tenant, ref, how)
        try:
            yield
        finally:
            for observer in self._observers:
                observer.after_change(self.tenant, ref, how)


def observe_store(store: Store, observers: Sequence[Observer]) -> Store:
    """Wrap a store so that observers are notified of every write. Without observers, return `store` unchanged.

    Args:
        store: the store that does the work. Observers may read from it.
        observers: the observers. Their `begin` is called.
    """
    for observer in observers:
        observer.begin(store)
    return ObservedStore(store, observers) if observers else store  # type: ignore[abstract]  # the rest is passed on
