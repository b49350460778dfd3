"""The part of the store contract about a tenant as a whole: leases, what was learned of models, and the handle itself.

**Leases and what was learned** belong to a tenant. Of several callers, in any number of processes, one gets a lease. It has the lease
until it releases it, or until it has expired by the clock of the next caller that asks. Expired leases are deleted eventually.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

FOREVER: Final = (1 << 53) - 1
"""The latest timestamp for `TenantStore.learn`: data stored with it is never deleted in favour of newer data."""


class TenantStore(Protocol):
    """Store what belongs to a tenant, and open and close handles. The module describes what all methods promise."""

    tenant: str

    @property
    def durable(self) -> bool:
        """True if written data outlives the process. Then a session that ends is closed; otherwise it is deleted."""

    async def tenants(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """Return tenants that have sessions or owners of memories, in order, after `after`.

        This is the only method that sees other tenants, for jobs that run once for a whole database.
        """
        ...

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        """Take the tenant's lease of that name, or renew it; return True if `holder` has it now.

        A lease that has expired at `now` is taken over. A holder renews in time, and stops working if that fails.

        Args:
            name: what is leased, an identifier.
            holder: an identifier of the caller that no other caller uses.
            now: milliseconds since the epoch.
            until: when it expires: after `now`, by at most `LEASE_MILLISECONDS`.
        """
        ...

    async def leased_by(self, name: str, *, now: int) -> str | None:
        """Return the holder of the tenant's lease of that name; None if there is none, or it has expired at `now`."""
        ...

    async def release(self, name: str, holder: str) -> None:
        """Release a lease; do nothing if `holder` does not have it."""
        ...

    async def learned(self, model: str) -> bytes | None:
        """Return the data stored about a model for the tenant; None if there is none."""
        ...

    async def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        """Store `data` of a model in place of `expect`; return False, and write nothing, if something else is stored.

        The newest `LEARNED_MODELS` of a tenant are kept; see `FOREVER`.

        Args:
            model: an identifier.
            data: opaque; at most `LEARNED_BYTES`, else `TooLarge`.
            timestamp: milliseconds since the epoch.
            expect: what `learned` returned; None: nothing.
        """
        ...

    async def ping(self) -> None:
        """Return once the store has been read and has written something. Raises `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then release all resources. Closing twice is fine."""
        ...
