"""The part of the store contract about a tenant as a whole: leases, calibration data of models, and the handle itself.

Leases and calibration data belong to a tenant. If several callers ask for a lease, in any number of processes, one of them gets
the lease. This caller holds the lease until the caller releases it, or until another caller asks after it has expired, by the
clock of the caller that asks. Expired leases are deleted eventually.
"""

from __future__ import annotations

from typing import Final

FOREVER: Final = (1 << 53) - 1
"""The latest possible timestamp for `TenantStore.learn`. Data stored with this timestamp is never deleted in favour of newer data."""
