"""A store around another one: whoever adds something to a few operations passes the others on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.stores.base import Store

if TYPE_CHECKING:
    _Store = Store
else:
    _Store = object  # a protocol's own methods would stand before `__getattr__`


class StoreWrapper(_Store):
    """Passes on what a subclass does not define. Handles of other tenants are wrapped as well."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.tenant = inner.tenant

    def for_tenant(self, tenant: str) -> Store:
        """See `Store.for_tenant`."""
        return self.wrap(self.inner.for_tenant(tenant))

    def wrap(self, inner: Store) -> Self:
        """The same around another handle: what a subclass was made with besides is its to hand on."""
        return type(self)(inner)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)
