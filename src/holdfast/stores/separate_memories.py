"""A store whose memories are kept in a separate `MemoryStore`, one per tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.wrapper import StoreWrapper

_METHODS: Final = frozenset(name for name in vars(MemoryStore) if not name.startswith("_"))


class StoreWithSeparateMemories(StoreWrapper):
    """Passes methods of `MemoryStore` on to a separate memory store, and all others to the store.

    Args:
        inner: the store.
        get_memory_store: returns the memory store of a tenant; its opener closes it.
    """

    def __init__(self, inner: Store, get_memory_store: Callable[[str], MemoryStore]) -> None:
        super().__init__(inner)
        self._get_memory_store = get_memory_store
        self._memories = get_memory_store(inner.tenant)

    def wrap(self, inner: Store) -> Self:
        """Return the same wrapper for another tenant."""
        return type(self)(inner, self._get_memory_store)

    def __getattribute__(self, name: str) -> Any:
        """Look up methods of `MemoryStore` in the separate memory store."""
        if name in _METHODS:
            return getattr(self._memories, name)
        return super().__getattribute__(name)


def separate_memories(store: Store, get_memory_store: Callable[[str], MemoryStore] | None) -> Store:
    """Return `store` with its memories in the stores that `get_memory_store` returns; None: `store` itself."""
    return store if get_memory_store is None else StoreWithSeparateMemories(store, get_memory_store)  # type: ignore[abstract]  # the rest is passed on
