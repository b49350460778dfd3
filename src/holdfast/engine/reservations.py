"""Reserve sessions for requests whose turns have not begun yet."""

from __future__ import annotations

from collections import Counter

from holdfast.domain.session import SessionRef


class Reservation:
    """Reserves a session for one request until the request's turn has begun, so that no other request uses the session."""

    def __init__(self, reserved: Counter[SessionRef], ref: SessionRef) -> None:
        self._reserved = reserved
        self._ref: SessionRef | None = ref
        reserved[ref] += 1

    def release(self) -> None:
        """Make the session available to other requests. A second call does nothing."""
        ref, self._ref = self._ref, None
        if ref is None:
            return
        self._reserved[ref] -= 1
        if not self._reserved[ref]:
            del self._reserved[ref]
