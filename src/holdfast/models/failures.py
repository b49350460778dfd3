"""Convert failures that upstreams report to Holdfast's errors. This module does no I/O.

`holdfast.models.overflow` detects the errors about prompts that are too long.
"""

from __future__ import annotations

import email.utils
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.domain.profiles import KINDS_TAKEN
from holdfast.errors import ContextTooLong, ModelError, ModelProtocolError, ModelRejected, ModelUnavailable
from holdfast.models.overflow import parse_overflow
from holdfast.models.refusals import STATUSES, find_untaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TRY_LATER: Final = frozenset({408, 409, 425, 429})
"""4xx statuses after which the same request may succeed later: timeout, conflict, too early, too many requests."""
HOPELESS: Final = frozenset({"insufficient_quota", "billing_not_active"})
"""Error codes after which a retry cannot succeed, although upstreams send these codes with status 429."""
MESSAGE_CHARS: Final = 500
"""Maximum number of characters of the upstream's message that the message of an error contains. The error's `body` has the full text."""
SCANNED_CHARS: Final = 4000
"""Maximum number of characters of a message that are searched for signs of a prompt that is too long. The limit bounds the work."""
_ERROR_TYPES: Final = ("error", "response.error", "response.failed")
SECRET_CHARS: Final = 8
"""Minimum length of a credential that is redacted. Shorter ones are not: local servers accept keys such as `none`, a common word in
errors."""


def make_upstream_error(
    status: int | None, body: dict[str, Any] | None, *, where: str, headers: Mapping[str, str] | None = None
) -> ModelError:
    """Return Holdfast's error for an error that an upstream reported, as an HTTP response or in the middle of an answer.

    Args:
        status: HTTP status, or None if the response began with status 200.
        body: The upstream's error object, with secrets removed, or None if there is none.
        where: Address of the upstream, for the message.
        headers: Headers of the response.
    """
    words = _extract_message(body)
    status = status if status is not None else _find_status(body)
    summary = f"{where} answered {status}" if status else f"{where} reported an error"
    message = f"{summary}: {words[:MESSAGE_CHARS]}" if words else summary
    wait = parse_retry_after(headers or {})
    overflow = None if status == 429 else parse_overflow(" ".join([words, _find_quoted(body)]), body or {})
    if overflow is not None:
        limit, requested = overflow
        return ContextTooLong(
            message, context_limit=limit, requested=requested, status=status, body=body, retry_after=wait
        )
    if status is not None and 300 <= status < 400:
        return ModelProtocolError(
            f"{summary}, a redirect; redirects are not followed, because the key would be sent along", status=status
        )
    refused = status is not None and 400 <= status < 500 and status not in TRY_LATER
    refused = refused or (
        status in STATUSES and find_untaken(words, KINDS_TAKEN, exactly=True) is not None
    )  # llama.cpp answers 500
    kind = ModelRejected if refused or (status is None and _is_request_error(body)) else ModelUnavailable
    return kind(message, status=status, body=body, retry_after=wait)


def make_too_long_error(refusal: ContextTooLong, tried: Sequence[int]) -> ContextTooLong:
    """Return the error for a prompt that the model rejected as too long, even after it was shortened several times.

    The message contains the size of each prompt, and the numbers that the model reported.

    Args:
        refusal: Error of the last attempt.
        tried: Tokens of the prompt of each attempt, in order, as counted by Holdfast. There must be at least one.
    """
    sizes = ", ".join(f"{tokens:,}" for tokens in tried)
    facts = [f"the model rejected every prompt as too long; tried {sizes} tokens by Holdfast's count"]
    if refusal.context_limit is not None:
        facts.append(f"the model reports a window of {refusal.context_limit:,}")
    if refusal.requested is not None:
        facts.append(f"and {refusal.requested:,} for the last prompt")
    return ContextTooLong(
        f"{', '.join(facts)}. {refusal}",
        context_limit=refusal.context_limit,
        requested=refusal.requested,
        status=refusal.status,
        body=refusal.body,
        retry_after=refusal.retry_after,
    )


def is_retryable(error: ModelError, headers: Mapping[str, str]) -> bool:
    """Return True if the same request may succeed soon. The upstream's header `x-should-retry` takes precedence over the type of error."""
    advice = headers.get("x-should-retry", "").lower()
    if advice in ("true", "false"):
        return advice == "true"
    return isinstance(error, ModelUnavailable) and not HOPELESS.intersection(_list_labels(error.body))


def parse_retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Return the pause in seconds for which the upstream asked in `retry-after-ms` or `retry-after`, or None.

    Args:
        headers: Headers of the response. The names are looked up in lower case, so pass a case-insensitive mapping if they may differ.
        now: Current Unix seconds, from which a date is converted to a pause. None: the `date` header of the response is used.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    then = _parse_date(headers.get("retry-after"))
    here = now if now is not None else _parse_date(headers.get("date"))
    return None if then is None or here is None else max(0.0, then - here)


def is_error(chunk: dict[str, Any]) -> bool:
    """Return True if a JSON object from an upstream is an error, in any of the known formats."""
    if chunk.get("error") or chunk.get("error_message"):
        return True
    return chunk.get("object") == "error" or chunk.get("type") in _ERROR_TYPES


def find_error_object(data: Any) -> dict[str, Any] | None:
    """Return the error object in an upstream's JSON, or None if there is none.

    Known formats are `{"error": {…}}`, `{"error": "…"}`, FastAPI's `detail`, Gemini's list, `response.failed` of OpenAI's Responses API,
    and a chunk with `error_type` and `error_message`.
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


def parse_error_body(text: bytes, secrets: Iterable[str]) -> dict[str, Any] | None:
    """Return the error object in the body of a failed response, with secrets removed, or None if the body is not JSON."""
    try:
        data = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return find_error_object(scrub(data, secrets))


def scrub(value: Any, secrets: Iterable[str]) -> Any:
    """Return a copy of a JSON value in which `secrets` are replaced by `[redacted]`, because some upstreams quote the key that they reject."""
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


def _extract_message(body: dict[str, Any] | None) -> str:
    """Return the message of an error object on one line, or the whole object as JSON if it has no message."""
    if body is None:
        return ""
    message = body.get("message")
    if not isinstance(message, str) or not message:
        message = msgspec.json.encode(body).decode()
    return " ".join(message[:SCANNED_CHARS].split())


def _find_quoted(body: dict[str, Any] | None) -> str:
    """Return the error of the original upstream that a router quotes (OpenRouter: `metadata.raw`), on one line, or an empty string."""
    metadata = (body or {}).get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not raw:
        return ""
    text = raw if isinstance(raw, str) else msgspec.json.encode(raw).decode()
    return " ".join(text[:SCANNED_CHARS].split())


def _list_labels(body: dict[str, Any] | None) -> list[str]:
    return [value for key in ("code", "type", "status") if isinstance(value := (body or {}).get(key), str)]


def _find_status(body: dict[str, Any] | None) -> int | None:
    """Return the HTTP status that an error object contains as its code, or None. Errors inside a stream have no other status."""
    for key in ("code", "status", "status_code"):
        value = (body or {}).get(key)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _is_request_error(body: dict[str, Any] | None) -> bool:
    return any("invalid" in label or "BadRequest" in label for label in _list_labels(body))


def _parse_date(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None
