"""No prompt fits, or a model did not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.errors.base import HoldfastError, hide_addresses


class BudgetTooSmall(HoldfastError):
    """No legal working set fits the budget.

    Args:
        budget: tokens allowed.
        needed: tokens the smallest legal working set takes.
        what: what takes them, in words.
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
        status: the upstream's HTTP status, if it gave one.
        body: the upstream's own error object, if it gave one.
        retry_after: seconds the upstream asked to wait, if it did.
    """

    code = "upstream_error"
    http_status: ClassVar[int] = 502
    """Where the upstream gave none that its caller can do something about."""

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
        """Whether the model was called with the caller's own key."""

    @property
    def public_message(self) -> str:
        """The message without the upstream's address."""
        return hide_addresses(str(self), "the upstream")


class ModelUnavailable(ModelError):
    """Refused, unreachable, timed out, overloaded or 5xx: try again later."""

    code = "upstream_unavailable"


class ModelBusy(ModelUnavailable):
    """As many calls of the model run as are allowed here, and none ended while this one waited.

    Args:
        name: what the model is called.
        most: calls at once.
        waited: seconds.
    """

    code = "upstream_busy"
    http_status = 503

    def __init__(self, name: str, most: int, waited: float) -> None:
        super().__init__(
            f"{name} is busy: {most} calls run, which is as many as max_requests allows, and none ended within {waited:g} s",
            status=503,
            retry_after=1,
        )


class ModelRejected(ModelError):
    """The upstream refused the request (4xx); its own words are in `body`."""

    code = "upstream_rejected"
    http_status = 400


class ContextTooLong(ModelRejected):
    """The prompt, or prompt and reply together, do not fit the model's context window: send less.

    Args:
        message: what happened.
        context_limit: the window in tokens, where the upstream said it; None where it did not.
        requested: the prompt's tokens as the upstream counted them, without the reply, where it said so.
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
    """The upstream answered with something that is not an answer."""

    code = "upstream_protocol_error"


class ModelReplyTooLarge(ModelProtocolError):
    """The upstream's reply is larger than a reply may be; what arrived of it is in the log, marked as interrupted."""

    code = "upstream_reply_too_large"


class EmbeddingFailed(HoldfastError):
    """There are no vectors: the model that makes them did not answer, refused, or gave something else.

    Args:
        message: what happened; neither texts nor secrets.
        again: whether the same call may pass later.
        retry_after: seconds to wait before, if whoever answered said so.
        refused: positions of texts that will never pass; the others would.
        vectors: what came of the others, by position.
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
    """There are no scores: the reranker did not answer, refused, or gave something else. A search keeps its own order then."""

    code = "rerank_failed"
    http_status = 502

    @property
    def public_message(self) -> str:
        """The message without the endpoint's address."""
        return hide_addresses(str(self), "the endpoint")
