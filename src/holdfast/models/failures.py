"""What went wrong upstream, told as one of Holdfast's errors. Decisions only; no I/O.

How providers say that a prompt is too long stands in `holdfast.models.overflow`.
"""

from __future__ import annotations

import email.utils
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import ContextTooLong, ModelError, ModelProtocolError, ModelRejected, ModelUnavailable
from holdfast.models.overflow import overflow_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TRY_LATER: Final = frozenset({408, 409, 425, 429})
"""4xx that the same request may pass later: timed out, lock held, too early, too many."""
HOPELESS: Final = frozenset({"insufficient_quota", "billing_not_active"})
"""Codes sent with 429 where waiting does not help."""
MESSAGE_CHARS: Final = 500
"""Characters of an upstream's own words in an error's message; `body` has them all."""
SCANNED_CHARS: Final = 4000
"""Characters of an upstream's words that are searched for an overflow: a bound on the work."""
_ERROR_TYPES: Final = ("error", "response.error", "response.failed")
SECRET_CHARS: Final = 8
"""Shortest credential that is blotted out. Local servers take keys such as `none`, a word that errors need."""


def make_upstream_error(
    status: int | None, body: dict[str, Any] | None, *, where: str, headers: Mapping[str, str] | None = None
) -> ModelError:
    """The error for an upstream that said `body`, with an HTTP `status` or in the middle of its answer.

    Args:
        status: the HTTP status; None if the answer had begun as a good one.
        body: the upstream's error object, scrubbed; None if it gave none.
        where: who answered, for the message.
        headers: of the response.
    """
    words = _words(body)
    status = status if status is not None else _status_in(body)
    said = f"{where} answered {status}" if status else f"{where} reported an error"
    message = f"{said}: {words[:MESSAGE_CHARS]}" if words else said
    wait = retry_after(headers or {})
    overflow = None if status == 429 else overflow_in(" ".join([words, _find_quoted(body)]), body or {})
    if overflow is not None:
        limit, requested = overflow
        return ContextTooLong(
            message, context_limit=limit, requested=requested, status=status, body=body, retry_after=wait
        )
    if status is not None and 300 <= status < 400:
        return ModelProtocolError(f"{said}, a redirect; none is followed, the key would go along", status=status)
    refused = status is not None and 400 <= status < 500 and status not in TRY_LATER
    kind = ModelRejected if refused or (status is None and _blames_request(body)) else ModelUnavailable
    return kind(message, status=status, body=body, retry_after=wait)


def make_too_long_error(refusal: ContextTooLong, tried: Sequence[int]) -> ContextTooLong:
    """The error for a prompt that was refused at every size, with the numbers.

    Args:
        refusal: the last one.
        tried: tokens of each prompt that was sent, as counted here, in order; at least one.
    """
    sizes = ", ".join(f"{tokens:,}" for tokens in tried)
    facts = [f"no prompt was short enough for the model; tried {sizes} tokens by our own count"]
    if refusal.context_limit is not None:
        facts.append(f"it says that its window is {refusal.context_limit:,}")
    if refusal.requested is not None:
        facts.append(f"and that the last one had {refusal.requested:,}")
    return ContextTooLong(
        f"{', '.join(facts)}. {refusal}",
        context_limit=refusal.context_limit,
        requested=refusal.requested,
        status=refusal.status,
        body=refusal.body,
        retry_after=refusal.retry_after,
    )


def worth_retrying(error: ModelError, headers: Mapping[str, str]) -> bool:
    """Whether the same request may pass soon. The upstream's own `x-should-retry` is believed."""
    advice = headers.get("x-should-retry", "").lower()
    if advice in ("true", "false"):
        return advice == "true"
    return isinstance(error, ModelUnavailable) and not HOPELESS.intersection(_labels(error.body))


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds the upstream asked to wait: `retry-after-ms`, or `retry-after` in seconds or as a date; None if neither.

    Args:
        headers: of the response, with names in any case if the mapping does not care.
        now: Unix seconds, for a date; the upstream's own `date` header is used where it is not given.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    then = _date(headers.get("retry-after"))
    here = now if now is not None else _date(headers.get("date"))
    return None if then is None or here is None else max(0.0, then - here)


def is_error(chunk: dict[str, Any]) -> bool:
    """Whether an event of a stream tells an error instead of being a chunk: upstreams have several shapes for that."""
    if chunk.get("error") or chunk.get("error_message"):
        return True
    return chunk.get("object") == "error" or chunk.get("type") in _ERROR_TYPES


def error_object(data: Any) -> dict[str, Any] | None:
    """The error object in an upstream's JSON.

    `{"error": {…}}`, `{"error": "…"}`, FastAPI's `detail`, Gemini's list, the `response.failed` of OpenAI's Responses,
    `error_type` and `error_message` in a chunk.
    """
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return {"message": data} if isinstance(data, str) and data else None
    if isinstance(data.get("response"), dict) and data["response"].get("error"):
        data = data["response"]
    if data.get("error_message"):
        data = {"error": {"message": data["error_message"], "type": data.get("error_type")}}
    for key in ("error", "detail"):
        inner = data.get(key)
        if isinstance(inner, dict):
            return inner
        if isinstance(inner, str) and inner:
            return {"message": inner} | {other: value for other, value in data.items() if other != key}
    return data or None


def error_from(text: bytes, secrets: Iterable[str]) -> dict[str, Any] | None:
    """The error object in the body of a failed response, secrets blotted out; None if it is no JSON."""
    try:
        data = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return error_object(scrub(data, secrets))


def scrub(value: Any, secrets: Iterable[str]) -> Any:
    """`value` without `secrets`: there are upstreams that quote the key they refuse."""
    if isinstance(value, str):
        for secret in secrets:
            if len(secret) >= SECRET_CHARS:
                value = value.replace(secret, "[redacted]")
        return value
    if isinstance(value, dict):
        return {scrub(key, secrets): scrub(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [scrub(item, secrets) for item in value]
    return value


def _words(body: dict[str, Any] | None) -> str:
    """What the error says to a reader, on one line."""
    if body is None:
        return ""
    message = body.get("message")
    if not isinstance(message, str) or not message:
        message = msgspec.json.encode(body).decode()
    return " ".join(message[:SCANNED_CHARS].split())


def _find_quoted(body: dict[str, Any] | None) -> str:
    """What a router (OpenRouter: `metadata.raw`) hands on of the error of whoever it asked."""
    metadata = (body or {}).get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not raw:
        return ""
    text = raw if isinstance(raw, str) else msgspec.json.encode(raw).decode()
    return " ".join(text[:SCANNED_CHARS].split())


def _labels(body: dict[str, Any] | None) -> list[str]:
    return [value for key in ("code", "type", "status") if isinstance(value := (body or {}).get(key), str)]


def _status_in(body: dict[str, Any] | None) -> int | None:
    """The HTTP status that an error inside a stream names as its code."""
    for key in ("code", "status", "status_code"):
        value = (body or {}).get(key)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _blames_request(body: dict[str, Any] | None) -> bool:
    return any("invalid" in label or "BadRequest" in label for label in _labels(body))


def _date(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None
