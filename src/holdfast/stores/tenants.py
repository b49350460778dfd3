"""The part of the store contract about a tenant as a whole: leases, what was learned of models, and the handle itself.

**Leases and what was learned** belong to a tenant. Of several callers, in any number of processes, one gets a lease, until it
expires by the clock of the next caller that asks, or is released; expired leases are deleted in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

FOREVER: Final = (1 << 53) - 1
"""A timestamp for `TenantStore.learn` that nothing is newer than: what is kept with it is never trimmed."""


class TenantStore(Protocol):
    """Keep what belongs to a tenant, and open and close handles. The module says what all methods promise."""

    tenant: str

    @property
    def durable(self) -> bool:
        """Return True if what is written outlives the process: then a session that ends is closed, and not lost."""

    async def tenants(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """Return tenants that have sessions or owners of memories, in order, after `after`.

        This is for jobs that run once for a whole database, and the one method that sees other tenants.
        """
        ...

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        """Take the tenant's lease of that name, or renew it; return whether `holder` has it now.

        One that has expired at `now` is taken over. A holder renews in time, and stops when that fails.

        Args:
            name: what is leased, an identifier.
            holder: who asks, an identifier that no other caller uses.
            now: milliseconds since the epoch.
            until: when it expires: after `now`, by at most `LEASE_MILLISECONDS`.
        """
        ...

    async def leased_by(self, name: str, *, now: int) -> str | None:
        """Return the holder of the tenant's lease of that name; None if there is none, or it has expired at `now`."""
        ...

    async def release(self, name: str, holder: str) -> None:
        """Give a lease back; does nothing when `holder` does not have it."""
        ...

    async def learned(self, model: str) -> bytes | None:
        """Return what the tenant keeps of a model; None when there is nothing."""
        ...

    async def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        """Keep `data` of a model in place of `expect`; return False, and write nothing, when something else is stored.

        The newest `LEARNED_MODELS` of a tenant are kept; see `FOREVER`.

        Args:
            model: an identifier.
            data: opaque; at most `LEARNED_BYTES`, else `TooLarge`.
            timestamp: milliseconds since the epoch.
            expect: what `learned` returned; None: nothing.
        """
        ...

    async def ping(self) -> None:
        """Return when the store can be read and has written something. Raises `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then release everything. Closing twice is fine."""
        ...
