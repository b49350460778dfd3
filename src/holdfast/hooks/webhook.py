"""Send a signed POST request when a session ends. Its format is Agora's "agent history" notification (event 103).

The request has three signatures of the exact bytes that are sent: `webhook-signature` of Standard Webhooks, `Agora-Signature-V2`
(HMAC-SHA256) and `Agora-Signature` (HMAC-SHA1). `noticeId` is `EndedSession.delivery_id`. It is the same for every
attempt, so that receivers can drop duplicates.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import anyio.to_thread
import msgspec

from holdfast.domain.session import EndReason, Entry
from holdfast.errors import HookFailed, InvalidRequest
from holdfast.hooks.registry import ENDS, EndedSession
from holdfast.limits import WEBHOOK_BYTES
from holdfast.models.failures import parse_retry_after
from holdfast.models.http import check_headers, find_proxy
from holdfast.secrets.redactor import Redactor
from holdfast.wire.voice import make_records

_log = logging.getLogger("holdfast.webhook")
PRODUCT_ID: Final = 17
"""Agora's product id for conversational AI."""
AGENT_HISTORY: Final = 103
TIMEOUT: Final = 10.0
"""Time limit of a call in seconds. Agora uses the same."""
GONE: Final = 410
PREFIX: Final = "whsec_"
_OWN: Final = frozenset(
    {"agora-signature", "agora-signature-v2", "user-agent", "webhook-id", "webhook-signature", "webhook-timestamp"}
)


class Webhook:
    """A hook that posts the messages of a session to a URL when the session ends.

    Use it as `Holdfast(hooks=[Webhook(url, secret)])`. Only a 2xx response within the timeout is a success. After any other response,
    including a redirect, the request is sent again later, with growing pauses. If a receiver answers 410, it is not called again until
    the process restarts.

    Args:
        url: URL of the receiver, with `http://` or `https://`.
        secret: key of the signatures: `whsec_` and base64 as in Standard Webhooks, or any other text.
        events: the webhook is called only for sessions that end for one of these reasons.
        headers: headers to send in addition to the webhook's own.
        redactor: removes secrets from the messages that are sent; None: messages are sent as they are stored.
        clock: returns the time in milliseconds since the epoch.

    Raises:
        InvalidRequest: the URL, the secret, or a header is invalid.
    """

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        events: Collection[EndReason] = ENDS,
        headers: Mapping[str, str] | None = None,
        redactor: Redactor | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._url, self._where = _parse_url(url)
        self._keys = parse_secret(secret)
        # Pending calls are recorded under this name.
        self.name = f"webhook.{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        self.reasons: frozenset[EndReason] = frozenset(events)
        self._headers = {key: value for key, value in check_headers(headers or {}).items() if key not in _OWN}
        self._redactor = redactor
        self._clock = clock
        self._gone = False

    def __repr__(self) -> str:
        return f"Webhook(at {self._where!r})"

    async def __call__(self, ended: EndedSession) -> None:
        """Send the notification that a session has ended.

        Raises:
            HookFailed: the receiver did not accept the notification. The error has `retry_after` if the receiver said when to try again.
        """
        if self._gone:
            return
        messages, truncated = await self._collect_messages(ended)
        body = await anyio.to_thread.run_sync(partial(self._build_body, ended, messages, truncated=truncated))
        status, response = await self._post(body, self._build_headers(body, ended.delivery_id))
        if status == GONE:
            self._gone = True
            fields = {"webhook": self._where, "status": status}
            _log.error("a webhook answered 410 Gone and is not called any more", extra={"fields": fields})
        elif not 200 <= status < 300:
            wait = parse_retry_after(response, now=self._clock() / 1000)
            raise HookFailed(f"{self._where} answered {status}", retry_after=wait)

    # -- what is sent --------------------------------------------------------

    async def _collect_messages(self, ended: EndedSession) -> tuple[list[bytes], bool]:
        """Return the newest messages within the limits, as JSON; then True if the size limit left some out."""
        messages: deque[bytes] = deque()
        size, truncated = 0, False
        async for page in ended.pages():
            for record in await anyio.to_thread.run_sync(self._encode_records, page):
                messages.append(record)
                size += len(record) + 1
            while size > WEBHOOK_BYTES:
                size -= len(messages.popleft()) + 1
                truncated = True
        return list(messages), truncated

    def _encode_records(self, entries: Sequence[Entry]) -> list[bytes]:
        records = make_records(entries)
        if self._redactor:
            records = [self._redactor.redacted_value(record) for record in records]
        return [msgspec.json.encode(record) for record in records]

    def _build_body(self, ended: EndedSession, messages: list[bytes], *, truncated: bool) -> bytes:
        session = ended.session
        channel, labels = session.metadata.get("channel"), session.metadata.get("labels")
        fields: dict[str, Any] = {"name": session.agent} if session.agent else {}
        if isinstance(channel, str):
            fields["channel"] = channel
        if isinstance(labels, dict) and labels:
            fields["labels"] = labels
        payload = {
            "agent_id": session.id,
            **(self._redactor.redacted_value(fields) if self._redactor else fields),
            "start_ts": session.created_at // 1000,
            "stop_ts": ended.ended_at // 1000,
            "session_id": session.id,
            "user_id": session.user_id,
            "reason": ended.reason,
            **({"is_truncated": True} if truncated else {}),
            "contents": msgspec.Raw(b"[" + b",".join(messages) + b"]"),
        }
        notice = {
            "noticeId": ended.delivery_id,
            "productId": PRODUCT_ID,
            "eventType": AGENT_HISTORY,
            "notifyMs": self._clock(),
            "sid": session.id,
            "payload": payload,
        }
        return msgspec.json.encode(notice)

    def _build_headers(self, body: bytes, delivery_id: str) -> dict[str, str]:
        """Return the headers of a call. Its signatures prove that the sender knows the secret, and that the call is recent."""
        timestamp = str(self._clock() // 1000)
        plain, standard = self._keys
        signed = hmac.digest(standard, f"{delivery_id}.{timestamp}.".encode() + body, "sha256")
        return {
            **self._headers,
            "content-type": "application/json; charset=utf-8",
            "user-agent": "holdfast-webhook",
            "webhook-id": delivery_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
            "agora-signature-v2": hmac.digest(plain, body, "sha256").hex(),
            "agora-signature": hmac.digest(plain, body, "sha1").hex(),
        }

    async def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, Mapping[str, str]]:
        """Send the request. Return status and headers of the response; its body is not read.

        Raises:
            HookFailed: there was no response.
        """
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        try:
            # A client per call, since calls are rare and there are many receivers.
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as client,
                client.post(
                    self._url,
                    data=io.BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                    proxy=find_proxy(self._url),
                ) as response,
            ):
                response.close()
                return response.status, {key.lower(): value for key, value in response.headers.items()}
        except TimeoutError as exc:
            raise HookFailed(f"{self._where} did not answer within {TIMEOUT:g} s") from exc
        except aiohttp.InvalidURL:  # its message quotes the URL, which may contain a secret
            raise HookFailed(f"{self._where} could not be reached: its URL is invalid") from None
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise HookFailed(f"{self._where} could not be reached: {type(exc).__name__}") from exc


def parse_secret(secret: str) -> tuple[bytes, bytes]:
    """Return the two signing keys that a secret contains.

    The first key is the text itself. The second key, for Standard Webhooks, is the decoded text after `whsec_`. Without this prefix,
    both keys are the text itself.

    Raises:
        InvalidRequest: the secret is empty, or `whsec_` is not followed by base64.
    """
    plain = secret.encode()
    if not plain:
        raise InvalidRequest("secret must not be empty: receivers could not verify the sender", param="secret")
    if not secret.startswith(PREFIX):
        return plain, plain
    try:
        decoded = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise InvalidRequest(f"secret must have base64 after {PREFIX}", param="secret") from None
    return plain, decoded


def _parse_url(url: str) -> tuple[str, str]:
    """Return a URL, and the part of the URL that may be logged. Path and query are left out, because they may be secret.

    Raises:
        InvalidRequest: the URL is not valid, or is neither `http://` nor `https://`.
    """
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or any(character.isspace() for character in url):
        raise InvalidRequest("a webhook's url must begin with http:// or https:// and name a host", param="url")
    port = f":{parts.port}" if parts.port else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return url, f"{parts.scheme}://{host}{port}"
