"""A store whose memories are kept in a separate `MemoryStore`, one per tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.wrapper import StoreWrapper

_METHODS: Final = frozenset(name for name in vars(MemoryStore) if not name.startswith("_"))


class SeparateMemoryStore(StoreWrapper):
    """Passes methods of `MemoryStore` on to a separate memory store, and all others to the store.

    Args:
        inner: the store.
        opened: returns a tenant's memory store; the caller that opened that store closes it.
    """

    def __init__(self, inner: Store, opened: Callable[[str], MemoryStore]) -> None:
        super().__init__(inner)
        self._opened = opened
        self._memories = opened(inner.tenant)

    def wrap(self, inner: Store) -> Self:
        """Return the same wrapper for another tenant."""
        return type(self)(inner, self._opened)

    def __getattribute__(self, name: str) -> Any:
        """Look up methods of `MemoryStore` in the separate memory store."""
        if name in _METHODS:
            return getattr(self._memories, name)
        return super().__getattribute__(name)


def separate_memories(store: Store, opened: Callable[[str], MemoryStore] | None) -> Store:
    """Return `store` with its memories in the stores that `opened` returns; None: `store` itself."""
    return store if opened is None else SeparateMemoryStore(store, opened)  # type: ignore[abstract]  # the rest is passed on
