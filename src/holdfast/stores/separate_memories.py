"""A store whose memories are stored in a separate `MemoryStore`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.wrapper import StoreWrapper

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
