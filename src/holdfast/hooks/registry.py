"""Hooks for the ends of sessions and observers of writes: protocols, registration, and the store that reports writes to observers."""

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
"""A change of stored data: an entry's pin, importance or content, a whole session, or the deletion of a session."""


class EndedSession:
    """A session that has ended, with all of its data; passed to hooks.

    Attributes:
        session: the session's fields, with its original name even if it has given up that name.
        reason: why it ended.
        delivery_id: identifies this end. It is the same for every attempt, so that receivers can detect duplicates.
        ended_at: milliseconds since the epoch.
        attempt: 1 for the first attempt.
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
        """The session's tenant."""
        return self.session.tenant

    @property
    def user_id(self) -> str:
        """The session's owner."""
        return self.session.user_id

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    async def entries(self, *, start: int = 0, retired: bool = False, media: bool = False) -> AsyncIterator[Entry]:
        """Yield the session's messages in order, from `seq` `start` on, reading page by page.

        Args:
            start: the first `seq`.
            retired: include messages that left the live path.
            media: include the data of images and other media, which are read message by message; otherwise a placeholder describes them.
        """
        while True:
            page = await self._store.entries(self._ref, start=start, limit=PAGE, retired=retired)
            for entry in page:
                yield (await restore_entries(self._store, self._ref, [entry]))[0] if media else entry
            if len(page) < PAGE:
                return
            start = page[-1].seq + 1


class Hook(Protocol):
    """A receiver of ends of sessions. It is called at least once for each end, and not again after a call without an exception.

    `name` is an identifier that must stay the same across restarts, since pending deliveries are recorded under it.
    """

    name: str
    reasons: frozenset[EndReason]
    """The hook is notified of ends for these reasons."""

    async def __call__(self, ended: EndedSession) -> Any:
        """Handle an end. An exception is recorded, and the hook is called again later."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A hook or observer that keeps copies of sessions elsewhere, and deletes them when a session is deleted."""

    async def forget(self, tenant: str, user_id: str, session_id: str) -> int:
        """Delete all copies of sessions with this name; return the number of deleted files."""
        ...

    async def forget_user(self, tenant: str, user_id: str) -> int:
        """Delete all copies of a user's sessions, including sessions that no longer exist; return the number of deleted files."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A receiver of writes to sessions, called by `ObservedStore`. Turns do not wait for its work."""

    def begin(self, store: Store) -> None:
        """Begin to observe this store, in a running event loop. Raises if the observer cannot be used."""
        ...

    def on_append(self, tenant: str, ref: SessionRef, appended: Appended) -> None:
        """Handle written entries. Must return at once and never raise; anything slow belongs in a task."""
        ...

    def before_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """Handle an upcoming change. `after_change` follows unless the process ends. The rules of `on_append` apply."""
        ...

    def after_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """Handle a change that has succeeded or failed; the store shows which of the two. The rules of `on_append` apply."""
        ...

    async def close(self) -> None:
        """Finish all work that was begun."""
        ...


HookFunction = Callable[[EndedSession, EndReason], Any]
"""A function used as a hook: `callback(session, reason)`, plain or async."""
F = TypeVar("F", bound=HookFunction)
ENDS: Final[frozenset[EndReason]] = frozenset({"ttl", "cap", "delete", "close"})
"""The default reasons of a hook: all but `shutdown`, which ends no session."""


class CallbackHook:
    """Wraps a function as a hook. A plain function runs in a thread, where `anyio.from_thread.run` can await coroutines.

    Args:
        function: called with the session and the reason.
        name: see `Hook`.
        reasons: see `Hook`.
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
        """Register a hook. It is notified of all ends from now on, and of earlier ends that are still pending for its name.

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
        """Return the hook of that name; None if there is none."""
        return self._hooks.get(name)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The hooks that also observe writes."""
        return tuple(hook for hook in self._hooks.values() if isinstance(hook, Observer))

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """The hooks that keep copies of sessions elsewhere."""
        return tuple(hook for hook in self._hooks.values() if isinstance(hook, Keeper))

    def get_names_for(self, reason: EndReason) -> tuple[str, ...]:
        """Return the names of the hooks to notify of ends for that reason, in order."""
        return tuple(name for name, hook in self._hooks.items() if reason in hook.reasons)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a hook is added."""
        self._listeners.append(listener)


def make_callback_hook(function: HookFunction, name: str | None, reasons: Collection[EndReason]) -> CallbackHook:
    """Wrap a function as a hook, named after the function unless a name is given.

    Raises:
        InvalidRequest: `function` does not take a session and a reason, or has no stable name of its own.
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
    """Return a short description of why a hook failed: the kind of error and its message."""
    words = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())


class ObservedStore(StoreWrapper):
    """Reports writes to observers. Observers return at once, so no write waits for them.

    Args:
        inner: the store.
        observers: called in order, for every tenant's writes.
    """

    def __init__(self, inner: Store, observers: Sequence[Observer]) -> None:
        super().__init__(inner)
        self._observers = tuple(observers)

    def wrap(self, inner: Store) -> Self:
        """Return the same wrapper around another handle."""
        return type(self)(inner, self._observers)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        appended = await self.inner.append(ref, write)
        # A write may retire entries without adding any.
        if write.entries or write.retire_from is not None:
            for observer in self._observers:
                observer.on_append(self.tenant, ref, appended)
        return appended

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        with self._report_change(new.ref, "replaced"):
            return await self.inner.replace(new, entries, **more)

    async def annotate(self, ref: SessionRef, seq: int, **changes: Any) -> Entry:
        with self._report_change(ref, "annotated"):
            return await self.inner.annotate(ref, seq, **changes)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        with self._report_change(ref, "erased"):
            return await self.inner.erase(ref, seq, tokens=tokens)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> RemovalCounts | None:
        if ref.withdrawn:
            return await self.inner.remove(ref, expect=expect, artifacts=artifacts)
        with self._report_change(ref, "deleted"):
            return await self.inner.remove(ref, expect=expect, artifacts=artifacts)

    @contextmanager
    def _report_change(self, ref: SessionRef, how: Change) -> Iterator[None]:
        """Report a change before it happens, since the process may end in between, and again after it."""
        for observer in self._observers:
            observer.before_change(self.tenant, ref, how)
        try:
            yield
        finally:
            for observer in self._observers:
                observer.after_change(self.tenant, ref, how)


def observe_store(store: Store, observers: Sequence[Observer]) -> Store:
    """Return a store that reports writes to the observers, which may read from `store`. Without observers, return `store`."""
    for observer in observers:
        observer.begin(store)
    return ObservedStore(store, observers) if observers else store  # type: ignore[abstract]  # the rest is passed on
