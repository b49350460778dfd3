"""Sealed items: a text that a client carries, and the part of a session that it stands for, protected against changes.

A client of OpenAI's or Anthropic's API gets a compaction as such an item, and sends it back later, possibly to another server. The item
names the session and its last message that the text covers. A key of the store signs both, together with tenant and user.

    hfs1.KEY.PAYLOAD.MAC        KEY is the key's id, PAYLOAD is JSON and MAC an HMAC-SHA256, both in URL-safe base64
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.errors import InvalidSealedItem
from holdfast.limits import SEALED_BYTES

PREFIX: Final = "hfs1."
"""Beginning of every sealed item, with the version of the format."""
_CONTEXT: Final = "holdfast:sealed:1"
"""Text that is signed with each item, so that a signature made for another purpose is not valid here."""


class SealedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a sealed item."""

    session: str
    """Id of the session."""
    identity: str
    """`Session.identity`. A session with the same id that was created later has another one."""
    through: int
    """`seq` of the last message that the item stands for."""
    summarized: int
    """`seq` of the last message that the session's summary covers; -1 if there is no summary."""
    text: str
    """Text of the item about the messages that it replaces."""
    reshaped: int = -1
    """`Session.reshaped` when the item was made. If it is unchanged, nothing was erased since."""


def is_sealed(token: object) -> bool:
    """Return True if a value looks like an item that Holdfast sealed. Whether it is valid is not checked."""
    return isinstance(token, str) and token.startswith(PREFIX)


def get_key_id(token: str) -> str:
    """Return the id of the key that signed an item; empty if the item is not complete."""
    parts = token.split(".")
    return parts[1] if len(parts) == 4 else ""


def seal(item: SealedItem, key_id: str, key: bytes, *, tenant: str, user_id: str) -> str:
    """Return the item as a text that only this tenant and user can send back.

    Args:
        item: the content.
        key_id: id of the key, in letters and digits.
        key: the secret.
        tenant: the tenant.
        user_id: the user who may send the item back.
    """
    head = f"{PREFIX}{key_id}.{_encode(msgspec.json.encode(item))}"
    return f"{head}.{_sign(head, key, tenant, user_id)}"


def open_sealed(token: str, keys: Mapping[str, bytes], *, tenant: str, user_id: str, where: str) -> SealedItem:
    """Return the content of a sealed item.

    Args:
        token: the item.
        keys: the valid keys by their ids.
        tenant: the tenant of the caller.
        user_id: the user of the caller.
        where: place of the item in the request, for errors.

    Raises:
        InvalidSealedItem: the item is not valid for this tenant and user.
    """
    if len(token) > SEALED_BYTES:
        raise InvalidSealedItem(
            f"{where} has {len(token):,} characters; at most {SEALED_BYTES:,} are allowed", param=where
        )
    head, _, mac = token.rpartition(".")
    key = keys.get(get_key_id(token))
    # The MAC is compared as text: base64 has several spellings of the same bytes.
    if key is not None and hmac.compare_digest(
        _sign(head, key, tenant, user_id).encode(), mac.encode(errors="replace")
    ):
        try:
            return msgspec.json.decode(_decode(head.rpartition(".")[2]), type=SealedItem)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            pass
    message = f"{where} could not be verified: send it unchanged, as the user who received it, or leave the item out"
    raise InvalidSealedItem(message, param=where)


def _sign(head: str, key: bytes, tenant: str, user_id: str) -> str:
    signed = msgspec.json.encode([_CONTEXT, tenant, user_id, head])
    return _encode(hmac.digest(key, signed, hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
