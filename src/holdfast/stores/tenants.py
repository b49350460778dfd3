"""The part of the store contract about a tenant as a whole: leases, calibration data of models, and the handle itself.

Leases and calibration data belong to a tenant. If several callers ask for a lease, in any number of processes, one of them gets
the lease. This caller holds the lease until the caller releases it, or until another caller asks after it has expired, by the
clock of the caller that asks. Expired leases are deleted eventually.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

FOREVER: Final = (1 << 53) - 1
"""The latest possible timestamp for `TenantStore.learn`. Data stored with this timestamp is never deleted in favour of newer data."""


class TenantStore(Protocol):
    """Store data of a tenant that belongs to no session, and open and close handles.

    The module docstring describes what all methods promise.
    """

    tenant: str

    @property
    def durable(self) -> bool:
        """True if written data is kept when the process ends. If False, a session that ends is deleted instead of closed."""

    async def tenants(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """Return at most `limit` tenants that have sessions, memories or records. The names come after `after`, in order.

        This is the only method that sees other tenants. It is for jobs that run once for a whole database.
        """
        ...

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        """Acquire or renew a lease of the tenant; return True if `holder` has it now.

        A lease of another holder that has expired at `now` is taken over. A holder must renew its lease in time, and must stop
        working if that fails.

        Args:
            name: the lease's name, an identifier.
            holder: an identifier of the caller that no other caller uses.
            now: the caller's time, in milliseconds since the epoch.
            until: the time when the lease expires; after `now` by at most `LEASE_MILLISECONDS`.
        """
        ...

    async def leased_by(self, name: str, *, now: int) -> str | None:
        """Return the holder of a lease of the tenant; None if nobody holds it, or if it has expired at `now`."""
        ...

    async def release(self, name: str, holder: str) -> None:
        """Release a lease; do nothing if `holder` does not have it."""
        ...

    async def learned(self, model: str) -> bytes | None:
        """Return the calibration data that the tenant has stored for a model; None if there are none."""
        ...

    async def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        """Store calibration data of a model if the stored data are still `expect`; return False, and write nothing, if they are not.

        Only the `LEARNED_MODELS` models with the latest timestamps are kept; see `FOREVER`.

        Args:
            model: an identifier of the model.
            data: opaque to the store; at most `LEARNED_BYTES`, else `TooLarge`.
            timestamp: milliseconds since the epoch.
            expect: the data that `learned` returned; None: nothing is stored.
        """
        ...

    async def ping(self) -> None:
        """Check that the store can be read and written. Raises `StoreUnavailable` if not."""
        ...

    async def close(self) -> None:
        """Finish the accepted operations, then release all resources. A second call does nothing."""
        ...
