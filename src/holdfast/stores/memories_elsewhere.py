"""A store whose memories are kept elsewhere: by a `MemoryStore` of somebody's own, one a tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.wrapper import StoreWrapper

_METHODS: Final = frozenset(name for name in vars(MemoryStore) if not name.startswith("_"))


class SeparateMemoryStore(StoreWrapper):
    """Passes on to the memory store what is its, and everything else to the store.

    Args:
        inner: the store.
        opened: gives a tenant's memory store; whoever opened that closes it.
    """

    def __init__(self, inner: Store, opened: Callable[[str], MemoryStore]) -> None:
        super().__init__(inner)
        self._opened = opened
        self._memories = opened(inner.tenant)

    def wrap(self, inner: Store) -> Self:
        """The same of another tenant."""
        return type(self)(inner, self._opened)

    def __getattribute__(self, name: str) -> Any:
        """What is the memory store's comes from there."""
        if name in _METHODS:
            return getattr(self._memories, name)
        return super().__getattribute__(name)


def separate_memories(store: Store, opened: Callable[[str], MemoryStore] | None) -> Store:
    """`store`, with memories where `opened` says; None: in the store itself."""
    return store if opened is None else SeparateMemoryStore(store, opened)  # type: ignore[abstract]  # the rest is passed on
