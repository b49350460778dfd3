"""Define errors of models, and of prompts that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.errors.base import HoldfastError, hide_addresses


class BudgetTooSmall(HoldfastError):
    """No legal working set fits the budget.

    Args:
        budget: allowed tokens.
        needed: tokens of the smallest legal working set.
        what: what uses them, in words.
    """

    code = "budget_too_small"
    http_status = 400

    def __init__(self, *, budget: int, needed: int, what: str) -> None:
        super().__init__(f"a working set needs at least {needed} tokens ({what}), the budget is {budget}")
        self.budget = budget
        self.needed = needed


class ModelError(HoldfastError):
    """The upstream model did not answer; the user's message stays in the log.

    Args:
        message: what happened.
        status: HTTP status of the upstream, if any.
        body: error object of the upstream, if any.
        retry_after: seconds to wait, if the upstream requested it.
    """

    code = "upstream_error"
    http_status: ClassVar[int] = 502
    """Status, unless the upstream's own status is useful for the caller."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.handed = False
        """True if the model was called with the caller's own key."""

    @property
    def public_message(self) -> str:
        """The message without the upstream's address."""
        return hide_addresses(str(self), "the upstream")


class ModelUnavailable(ModelError):
    """Refused, unreachable, timed out, overloaded or 5xx: try again later."""

    code = "upstream_unavailable"


class ModelBusy(ModelUnavailable):
    """The maximum number of calls of the model is running, and none ended while this one waited.

    Args:
        name: name of the model.
        most: maximum number of concurrent calls.
        waited: seconds.
    """

    code = "upstream_busy"
    http_status = 503

    def __init__(self, name: str, most: int, waited: float) -> None:
        super().__init__(
            f"{name} is busy: {most} calls are running, the maximum set by max_requests, and none ended within {waited:g} s",
            status=503,
            retry_after=1,
        )


class ModelRejected(ModelError):
    """The upstream rejected the request (4xx); its own message is in `body`."""

    code = "upstream_rejected"
    http_status = 400


class ContextTooLong(ModelRejected):
    """The prompt, or prompt and reply together, do not fit the model's context window: send less.

    Args:
        message: what happened.
        context_limit: the window in tokens; None if the upstream did not report it.
        requested: tokens of the prompt without the reply, as counted by the upstream; None if it did not report them.
        status, body, retry_after: as in `ModelError`.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        context_limit: int | None = None,
        requested: int | None = None,
        status: int | None = None,
        body: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, status=status, body=body, retry_after=retry_after)
        self.context_limit = context_limit
        self.requested = requested


class ModelProtocolError(ModelError):
    """The upstream answered with something that is not a valid answer."""

    code = "upstream_protocol_error"


class ModelReplyTooLarge(ModelProtocolError):
    """The upstream's reply is too large; the part that arrived is in the log, marked as interrupted."""

    code = "upstream_reply_too_large"


class EmbeddingFailed(HoldfastError):
    """No vectors: the embedding model did not answer, refused, or answered with something else.

    Args:
        message: what happened, without texts or secrets.
        again: True if the same call may succeed later.
        retry_after: seconds to wait before it, if requested.
        refused: positions of texts that will never succeed.
        vectors: vectors of other texts, by position.
    """

    code = "embedding_failed"
    http_status = 502

    def __init__(
        self,
        message: str,
        *,
        again: bool = False,
        retry_after: float | None = None,
        refused: tuple[int, ...] = (),
        vectors: Mapping[int, bytes] | None = None,
    ) -> None:
        super().__init__(message)
        self.again = again
        self.retry_after = retry_after
        self.refused = refused
        self.vectors = dict(vectors or {})

    @property
    def public_message(self) -> str:
        """The message without the endpoint's address."""
        return hide_addresses(str(self), "the endpoint")


class RerankFailed(HoldfastError):
    """No scores: the reranker did not answer, refused, or answered with something else. A search keeps its own order then."""

    code = "rerank_failed"
    http_status = 502

    @property
    def public_message(self) -> str:
        """The message without the endpoint's address."""
        return hide_addresses(str(self), "the endpoint")
