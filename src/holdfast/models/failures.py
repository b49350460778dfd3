"""What went wrong upstream, told as one of Holdfast's errors. Decisions only; no I/O."""

from __future__ import annotations

import email.utils
import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import ContextTooLong, ModelError, ModelProtocolError, ModelRejected, ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TRY_LATER: Final = frozenset({408, 409, 425, 429})
"""4xx that the same request may pass later: timed out, lock held, too early, too many."""
HOPELESS: Final = frozenset({"insufficient_quota", "billing_not_active"})
"""Codes sent with 429 where waiting does not help."""
MESSAGE_CHARS: Final = 500
"""Characters of an upstream's own words in an error's message; `body` has them all."""
SCANNED_CHARS: Final = 4000
"""Characters of an upstream's words that are searched for a context limit: a bound on the work."""
SECRET_CHARS: Final = 8
"""Shortest credential that is blotted out. Local servers take keys such as `none`, a word that errors need."""

_NUMBER = r"(\d[\d,_]{0,15})"
_TOO_LONG: Final = re.compile(
    r"context[ _](?:length|size|window|limit)|maximum (?:model|prompt|input) (?:length|tokens)|model token limit"
    r"|(?:prompt|input) is too long|too many (?:input )?tokens|input token count|prompt token count"
    r"|tokens? exceeds? the (?:configured )?limit|reduce the length of the (?:messages|prompt|input)"
    r"|range of input length|max_new_tokens` must be|maximum number of tokens allowed",
    re.IGNORECASE,
)
"""How vendors say that a prompt is too long."""
_NOT_TOO_LONG: Final = re.compile(r"per (?:min|hour|day)|rate[ _]limit|quota", re.IGNORECASE)
"""Tokens counted over time are a rate, not a window."""
_LIMITS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # OpenAI, vLLM, DeepSeek, OpenRouter, xAI, SGLang; LM Studio and vLLM with "only"
        rf"(?:maximum )?(?:context|prompt|model) (?:length|window|size)(?: of the model)?(?: is| of|:)?(?: only)? {_NUMBER}",
        rf"> {_NUMBER}",  # Anthropic: "205000 tokens > 200000 maximum", "190000 + 20000 > 200000"
        rf"context (?:length|size|window) \({_NUMBER}",  # SGLang: "the model's context length (4096 tokens)"; llama.cpp
        rf"{_NUMBER} (?:maximum context|token context|context (?:length|window))",  # Mistral
        rf"maximum number of tokens allowed \({_NUMBER}",  # Gemini
        rf"(?:limit|must be <=|cannot exceed)(?: is| of|:)? {_NUMBER}",  # OpenAI, Copilot, Moonshot; TGI; Cohere
        rf"range of input length should be \[1, ?{_NUMBER}",  # Qwen
    )
)
_SMALLEST_LIMIT: Final = 256
"""Below this a number in an error is a code or a count, not a window."""


def failed(
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
    if status != 429 and _too_long(body, words):
        limit = _context_limit(body, words)
        return ContextTooLong(message, context_limit=limit, status=status, body=body, retry_after=wait)
    if status is not None and 300 <= status < 400:
        return ModelProtocolError(f"{said}, a redirect; none is followed, the key would go along", status=status)
    refused = status is not None and 400 <= status < 500 and status not in TRY_LATER
    kind = ModelRejected if refused or (status is None and _blames_request(body)) else ModelUnavailable
    return kind(message, status=status, body=body, retry_after=wait)


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


def error_object(data: Any) -> dict[str, Any] | None:
    """The error object in an upstream's JSON: `{"error": {…}}`, `{"error": "…"}`, FastAPI's `detail`, Gemini's list."""
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return {"message": data} if isinstance(data, str) and data else None
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
    return error_object(scrubbed(data, secrets))


def scrubbed(value: Any, secrets: Iterable[str]) -> Any:
    """`value` without `secrets`: there are upstreams that quote the key they refuse."""
    if isinstance(value, str):
        for secret in secrets:
            if len(secret) >= SECRET_CHARS:
                value = value.replace(secret, "[redacted]")
        return value
    if isinstance(value, dict):
        return {scrubbed(key, secrets): scrubbed(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [scrubbed(item, secrets) for item in value]
    return value


def _words(body: dict[str, Any] | None) -> str:
    """What the error says to a reader, on one line."""
    if body is None:
        return ""
    message = body.get("message")
    if not isinstance(message, str) or not message:
        message = msgspec.json.encode(body).decode()
    return " ".join(message[:SCANNED_CHARS].split())


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


def _too_long(body: dict[str, Any] | None, words: str) -> bool:
    if any("context_length" in label or "context_size" in label for label in _labels(body)):
        return True
    return bool(_TOO_LONG.search(words)) and not _NOT_TOO_LONG.search(words)


def _context_limit(body: dict[str, Any] | None, words: str) -> int | None:
    """The context window in tokens that the error names, if it names one."""
    window = (body or {}).get("n_ctx")  # llama.cpp
    if isinstance(window, int) and window >= _SMALLEST_LIMIT:
        return window
    for pattern in _LIMITS:
        for found in pattern.findall(words):
            number = int(found.replace(",", "").replace("_", ""))
            if number >= _SMALLEST_LIMIT:
                return number
    return None


def _date(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None
