"""What was removed: a receipt for whoever asked for it."""

from __future__ import annotations

import msgspec

from holdfast.domain.session import Removed

_SUMS = tuple(Removed.__struct_fields__)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what was removed, with a session or a user. Nothing of what it said."""

    sessions: int = 0
    messages: int = 0
    """On live paths."""
    retired: int = 0
    """Messages that had left them."""
    bytes: int = 0
    """Of all of these."""
    compactions: int = 0
    views: int = 0
    model_calls: int = 0
    idempotency_keys: int = 0
    state_keys: int = 0
    """Of sessions' own state."""
    user_state_keys: int = 0
    """Of the state that a user's sessions share."""
    artifacts: int = 0
    """Versions."""
    artifact_bytes: int = 0
    media: int = 0
    """Contents of messages: images, recordings, files."""
    media_bytes: int = 0
    memories: int = 0
    """Of a user, with their signals and diary."""
    transcripts: int = 0
    """Files."""
    pending_deliveries: int = 0
    """Sessions of which hooks are still to be told: nobody else sees them any more, and when all were told they go. Their views,
    keys and media are not counted."""

    def __add__(self, other: Receipt) -> Receipt:
        """Both together."""
        return Receipt(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


def receipt_of(removed: Removed, **more: int) -> Receipt:
    """The receipt of one session.

    Args:
        removed: what the store counted.
        more: what was removed beside the store, by its name in `Receipt`.
    """
    return Receipt(sessions=1, **{name: getattr(removed, name) for name in _SUMS}, **more)
