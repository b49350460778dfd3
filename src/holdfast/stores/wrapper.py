"""A base class for stores that change a few operations of another store and pass on the rest, and a store whose memories are elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.domain.session import SessionRef
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended

if TYPE_CHECKING:
    _Store = Store
else:
    _Store = object  # a protocol's own methods would take precedence over `__getattr__`
from collections.abc import Callable
from typing import Final

from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore


class StoreWrapper(_Store):
    """Passes all methods that a subclass does not define on to the inner store. Handles of other tenants are wrapped as well."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.tenant = inner.tenant

    def for_tenant(self, tenant: str) -> Store:
        return self.wrap(self.inner.for_tenant(tenant))

    def wrap(self, inner: Store) -> Self:
        """Return a wrapper of the same kind around another handle.

        A subclass whose constructor has more arguments must override this method.
        """
        return type(self)(inner)

    def note_append(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        """Do what follows a successful `append`, for a write whose answer was lost, and which was then found in the log.

        A subclass that reports or counts appends overrides this method, and calls the inner store's method first.
        """
        if isinstance(self.inner, StoreWrapper):
            self.inner.note_append(ref, write, appended)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)


_METHODS: Final = frozenset(name for name in vars(MemoryStore) if not name.startswith("_"))


class StoreWithSeparateMemories(StoreWrapper):
    """Passes the methods of `MemoryStore` to a separate memory store, and all other methods to the inner store.

    Args:
        inner: the inner store.
        get_memory_store: returns the memory store of a tenant. The wrapper never closes it.
    """

    def __init__(self, inner: Store, get_memory_store: Callable[[str], MemoryStore]) -> None:
        super().__init__(inner)
        self._get_memory_store = get_memory_store
        self._memories = get_memory_store(inner.tenant)

    def wrap(self, inner: Store) -> Self:
        """Return a wrapper of the same kind around the handle of another tenant."""
        return type(self)(inner, self._get_memory_store)

    def __getattribute__(self, name: str) -> Any:
        """Return methods of `MemoryStore` from the separate memory store, and all other attributes from this object."""
        if name in _METHODS:
            return getattr(self._memories, name)
        return super().__getattribute__(name)


def separate_memories(store: Store, get_memory_store: Callable[[str], MemoryStore] | None) -> Store:
    """Wrap `store` so that its memories are stored in the memory stores that `get_memory_store` returns.

    If `get_memory_store` is None, return `store` unchanged.
    """
    return store if get_memory_store is None else StoreWithSeparateMemories(store, get_memory_store)  # type: ignore[abstract]  # the rest is passed on
