"""Errors of Anthropic's API. Follows the API reference, "Errors"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Type of the error for each HTTP status."""
STATUSES: Final[Mapping[str, int]] = {kind: status for status, kind in _TYPES.items()}
"""HTTP status for each type of error. Errors in the middle of a stream have no status."""


def make_error(status: int, fields: Mapping[str, Any], request_id: str | None) -> dict[str, Any]:
    """Return the body of an error response.

    Args:
        status: HTTP status of the response.
        fields: Fields of the error, such as `message`. They may include its `type`.
        request_id: Id of the request.
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, **fields}, "request_id": request_id}
