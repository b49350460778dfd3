"""A base class for stores that change a few operations of another store and pass on the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.domain.session import SessionRef
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended

if TYPE_CHECKING:
    _Store = Store
else:
    _Store = object  # its own methods would take precedence over `__getattr__`


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
