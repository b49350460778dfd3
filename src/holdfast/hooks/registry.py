"""Hooks of the ends of sessions and observers of writes: their protocols, their order, and the store that reports writes to observers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol, Self, TypeVar, get_args, runtime_checkable

import anyio.to_thread

from holdfast.domain.session import Ending, EndReason, Entry, NewEntry, Removed, Session, SessionRef
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import HOOKS, ID_BYTES, PAGE
from holdfast.media.outgoing import whole_entries
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

Change = Literal["annotated", "erased", "replaced", "deleted"]
"""What becomes of something that was written: an entry's pin or importance, its content, a whole session, all of it."""


class EndedSession:
    """A session that has ended, still whole: what a hook is given.

    Attributes:
        session: its own fields, under its own name also where it has given that up.
        reason: why it ended.
        delivery_id: the same however often this hook is told of this end: whoever receives it twice knows by that.
        ended_at: milliseconds since the epoch.
        attempt: 1 for the first try.
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
        """Whose it is."""
        return self.session.tenant

    @property
    def user_id(self) -> str:
        """Its owner."""
        return self.session.user_id

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    async def entries(self, *, start: int = 0, retired: bool = False, media: bool = False) -> AsyncIterator[Entry]:
        """Its messages in order, from `seq` `start` on, read page by page.

        Args:
            start: the first one.
            retired: those that left the live path too.
            media: with the data of images and other media, which is read message by message; else a mark tells of them.
        """
        while True:
            page = await self._store.entries(self._ref, start=start, limit=PAGE, retired=retired)
            for entry in page:
                yield (await whole_entries(self._store, self._ref, [entry]))[0] if media else entry
            if len(page) < PAGE:
                return
            start = page[-1].seq + 1


class Hook(Protocol):
    """Somebody who is told of ends, at least once each, and never again after a call that returned.

    `name` is an identifier that stays the same from start to start: what is left to be told is recorded by it.
    """

    name: str
    reasons: frozenset[EndReason]
    """The ends it is told of."""

    async def __call__(self, ended: EndedSession) -> Any:
        """Take note of an end. What it raises is recorded, and it is told again later."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A hook or observer that keeps something of sessions elsewhere, and gives it up when one is deleted."""

    async def forget(self, tenant: str, user_id: str, session_id: str) -> int:
        """Remove all that is kept of sessions of that name; how many files there were."""
        ...

    async def forget_user(self, tenant: str, user_id: str) -> int:
        """Remove all that is kept of a user's sessions, of whatever name, those that are gone included; how many files."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Somebody who follows what is written to sessions, off a turn's path. `holdfast.hooks.registry` tells it."""

    def begin(self, store: Store) -> None:
        """It is told from now on, of this store; in a running event loop. What cannot be used is told here, by raising."""
        ...

    def on_append(self, tenant: str, ref: SessionRef, appended: Appended) -> None:
        """Entries were written. Returns at once and never raises: what takes time is done later, in a task of its own."""
        ...

    def before_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """Something is about to change; `after_change` follows, unless the process ends before. As `on_append`."""
        ...

    def after_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """It has changed, or that has failed: the store says which. As `on_append`."""
        ...

    async def close(self) -> None:
        """Finish what was begun."""
        ...


HookFunction = Callable[[EndedSession, EndReason], Any]
"""A function that is told: `make_callback_hook(session, reason)`, plain or async."""
F = TypeVar("F", bound=HookFunction)
ENDS: Final[frozenset[EndReason]] = frozenset({"ttl", "cap", "delete", "close"})
"""What a hook is told of unless it says otherwise: all but `shutdown`, which ends no session."""


class CallbackHook:
    """A function as a hook. A plain one is called in a thread; `anyio.from_thread.run` awaits from there.

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
        _check_hook(getattr(hook, "name", None), getattr(hook, "reasons", ()))
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

    def get_names_for(self, reason: EndReason) -> tuple[str, ...]:
        """The names of those that are told of ends for that reason, in order."""
        return tuple(name for name, hook in self._hooks.items() if reason in hook.reasons)

    def add_listener(self, heard: Callable[[], None]) -> None:
        """Call `heard` whenever a hook has come."""
        self._heard.append(heard)


def make_callback_hook(function: HookFunction, name: str | None, reasons: Collection[EndReason]) -> CallbackHook:
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
    name = _derive_name(function) if name is None else name
    _check_hook(name, reasons)
    return CallbackHook(function, name, frozenset(reasons))


def _derive_name(function: HookFunction) -> str:
    qualified = getattr(function, "__qualname__", None)
    if not isinstance(qualified, str) or "<lambda>" in qualified:
        raise InvalidRequest(
            "this hook has no name of its own, by which what is left to be told could be recorded: give it one with name=",
            param="name",
        )
    return f"{getattr(function, '__module__', None) or ''}.{qualified}"


def _check_hook(name: object, reasons: Collection[object]) -> None:
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


def describe_failure(error: BaseException) -> str:
    """Why a hook failed, in short: what kind of error, and its words."""
    words = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())


class ObservedStore(StoreWrapper):
    """Tells observers what is written. They only take note of it: no write waits for them.

    Args:
        inner: the store.
        observers: told in order, of every tenant's writes.
    """

    def __init__(self, inner: Store, observers: Sequence[Observer]) -> None:
        super().__init__(inner)
        self._observers = tuple(observers)

    def wrap(self, inner: Store) -> Self:
        """The same around another handle."""
        return type(self)(inner, self._observers)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `Store.append`."""
        appended = await self.inner.append(ref, write)
        # A retirement may come without an entry.
        if write.entries or write.retire_from is not None:
            for observer in self._observers:
                observer.on_append(self.tenant, ref, appended)
        return appended

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """See `Store.replace`."""
        with self._report_change(new.ref, "replaced"):
            return await self.inner.replace(new, entries, **more)

    async def annotate(self, ref: SessionRef, seq: int, **changes: Any) -> Entry:
        """See `Store.annotate`."""
        with self._report_change(ref, "annotated"):
            return await self.inner.annotate(ref, seq, **changes)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """See `Store.erase`."""
        with self._report_change(ref, "erased"):
            return await self.inner.erase(ref, seq, tokens=tokens)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> Removed | None:
        """See `Store.remove`."""
        if ref.withdrawn:
            return await self.inner.remove(ref, expect=expect, artifacts=artifacts)
        with self._report_change(ref, "deleted"):
            return await self.inner.remove(ref, expect=expect, artifacts=artifacts)

    @contextmanager
    def _report_change(self, ref: SessionRef, how: Change) -> Iterator[None]:
        """Something that was written changes: told before it, since the process may end in between, and behind it."""
        for observer in self._observers:
            observer.before_change(self.tenant, ref, how)
        try:
            yield
        finally:
            for observer in self._observers:
                observer.after_change(self.tenant, ref, how)


def observe_store(store: Store, observers: Sequence[Observer]) -> Store:
    """The store, told of to observers; each of them may read from it from now on. The same store when there are none."""
    for observer in observers:
        observer.begin(store)
    return ObservedStore(store, observers) if observers else store  # type: ignore[abstract]  # the rest is passed on
