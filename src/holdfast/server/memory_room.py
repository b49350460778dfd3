"""Memory for bodies and large responses in flight, which all principals share. No principal can take all of it.

The bodies of requests have one room, and the responses another one, so that a client that reads slowly delays no upload.
"""

from __future__ import annotations

from collections import Counter

import anyio

from holdfast.accounting import Owner
from holdfast.limits import BODIES


class MemoryRoom:
    """Memory limit for request bodies or for large responses, shared by all principals.

    Memory is reserved as the bytes of a body arrive, or at once before a response is built. In this class, a body that arrives is also
    a response that waits for its memory. A principal may hold half of the memory, and a tenant three quarters. Two exceptions keep bodies from waiting for each other
    forever:

    - For the oldest of its arriving bodies, a principal may hold three quarters of the memory.
    - The oldest arriving body of all principals may exceed the total by the size of the largest allowed body.

    Args:
        body: size of the largest allowed body in bytes. The total is `BODIES` times as large.
    """

    def __init__(self, body: int) -> None:
        self.body = body
        self.held = 0
        self._owners: Counter[Owner] = Counter()
        self._tenants: Counter[str] = Counter()
        self._arriving: dict[MemoryReservation, None] = {}
        self._waiting: list[tuple[MemoryReservation, int, anyio.Event]] = []

    @property
    def size(self) -> int:
        """Total size of the memory in bytes."""
        return self.body * BODIES

    def get_held(self, owner: Owner) -> int:
        """Return the number of bytes that a principal holds."""
        return self._owners[owner]

    def is_full_for(self, owner: Owner) -> bool:
        """Return True if a principal or its tenant holds three quarters of the memory or more."""
        most = self.size * 3 // 4
        return self._owners[owner] >= most or self._tenants[owner.tenant] >= most

    async def take(self, reservation: MemoryReservation, size: int) -> None:
        """Reserve `size` more bytes for an arriving body. Wait until they are available."""
        self._arriving.setdefault(reservation)
        if self._can_take(reservation, size):
            self.add(reservation, size)
            return
        waiter = (reservation, size, anyio.Event())
        self._waiting.append(waiter)
        try:
            await waiter[2].wait()
        except BaseException:
            if not waiter[2].is_set():
                self._waiting.remove(waiter)
            raise

    def add(self, reservation: MemoryReservation, size: int) -> None:
        """Count `size` more bytes as reserved, even beyond the limit. A negative size releases bytes."""
        reservation.size += size
        self.held += size
        self._owners[reservation.owner] += size
        self._tenants[reservation.owner.tenant] += size
        if not self._owners[reservation.owner]:
            del self._owners[reservation.owner]
        if not self._tenants[reservation.owner.tenant]:
            del self._tenants[reservation.owner.tenant]

    def end_arrival(self, reservation: MemoryReservation) -> None:
        """Record that no more bytes of a body will arrive, because the body is complete or the request has failed."""
        self._arriving.pop(reservation, None)
        self.wake()

    def wake(self) -> None:
        """Let waiting bodies continue, if the memory that they wait for is available now."""
        for waiter in list(self._waiting):
            reservation, size, event = waiter
            if self._can_take(reservation, size):
                self._waiting.remove(waiter)
                self.add(reservation, size)
                event.set()

    def _can_take(self, reservation: MemoryReservation, size: int) -> bool:
        owner, most = reservation.owner, self.size * 3 // 4
        first = next((one for one in self._arriving if one.owner == owner), reservation) is reservation
        oldest = next(iter(self._arriving), reservation) is reservation
        return (
            self.held + size <= self.size + (self.body if oldest else 0)
            and self._owners[owner] + size <= (most if first else self.size // 2)
            and self._tenants[owner.tenant] + size <= most
        )


class MemoryReservation:
    """Memory that is reserved for the body of one request, or for its response.

    A body holds its memory from the first byte until the request's turn begins or the response is ready. A response holds it until the
    client has read it.
    """

    def __init__(self) -> None:
        self.size = 0
        self.owner = Owner()
        self._room: MemoryRoom | None = None

    def begin(self, room: MemoryRoom, owner: Owner) -> None:
        """Charge the body or response to a principal (`owner`), and take its memory from `room`."""
        self._room, self.owner = room, owner

    def end_arrival(self) -> None:
        """Record that the body has arrived completely or was given up."""
        if self._room is not None:
            self._room.end_arrival(self)

    def release(self) -> None:
        """Release the memory. Calling it again does nothing."""
        if self._room is not None and self.size:
            self._room.add(self, -self.size)
            self._room.wake()
