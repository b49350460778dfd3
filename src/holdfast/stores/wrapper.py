"""A base class for stores that change a few operations of another store and pass on the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.stores.base import Store

if TYPE_CHECKING:
    _Store = Store
else:
    _Store = object  # a protocol's own methods would take precedence over `__getattr__`


class StoreWrapper(_Store):
    """Passes on all methods that a subclass does not define. Handles of other tenants that it returns are wrapped as well."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.tenant = inner.tenant

    def for_tenant(self, tenant: str) -> Store:
        return self.wrap(self.inner.for_tenant(tenant))

    def wrap(self, inner: Store) -> Self:
        """Wrap another handle in the same way. A subclass whose constructor has more arguments overrides this method."""
        return type(self)(inner)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)
