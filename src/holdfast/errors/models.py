"""Define errors of models, embedding models and rerankers, and of prompts that are too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.errors.base import HoldfastError, hide_addresses


class BudgetTooSmall(HoldfastError):
    """No valid working set fits the token budget.

    Args:
        budget: tokens that are allowed.
        needed: tokens of the smallest valid working set.
        what: description of the parts that need these tokens.
    """

    code = "budget_too_small"
    http_status = 400

    def __init__(self, *, budget: int, needed: int, what: str) -> None:
        super().__init__(f"a working set needs at least {needed} tokens ({what}), the budget is {budget}")
        self.budget = budget
        self.needed = needed


class ModelError(HoldfastError):
    """A call of the upstream model failed. The user's message stays in the log.

    Args:
        message: what happened.
        status: HTTP status of the upstream's response. None: there was no response.
        body: error object in the upstream's response. None: it contained none.
        retry_after: seconds to wait, if the upstream asked for a pause.
    """

    code = "upstream_error"
    http_status: ClassVar[int] = 502
    """Status of the HTTP response, unless the upstream's own status is more useful for the client."""

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
        """The message, with the address of the upstream removed."""
        return hide_addresses(str(self), "the upstream")


class ModelUnavailable(ModelError):
    """The upstream cannot be reached, timed out, is overloaded, or answered with a status 5xx. Try again later."""

    code = "upstream_unavailable"


class ModelBusy(ModelUnavailable):
    """The maximum number of calls of the model is running, and none of them ended while this call waited.

    Args:
        name: name of the model.
        most: maximum number of concurrent calls.
        waited: seconds that this call has waited.
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
    """The upstream rejected the request (4xx). `body` is its error object."""

    code = "upstream_rejected"
    http_status = 400


class ContextTooLong(ModelRejected):
    """The prompt, or the prompt together with the reply, does not fit the context window of the model. Send less.

    Args:
        message: what happened.
        context_limit: size of the context window in tokens. None: the upstream did not report it.
        requested: tokens of the prompt without the reply, as counted by the upstream. None: the upstream did not report them.
        status: as in `ModelError`.
        body: as in `ModelError`.
        retry_after: as in `ModelError`.
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
    """The response of the upstream is not a valid answer."""

    code = "upstream_protocol_error"


class ModelReplyTooLarge(ModelProtocolError):
    """The reply of the upstream is too large. The part that had arrived is in the log, marked as interrupted."""

    code = "upstream_reply_too_large"


class EmbeddingFailed(HoldfastError):
    """The embedding model returned no vectors: it did not answer, rejected the texts, or its response was not valid.

    Args:
        message: what happened. It must not contain texts or secrets.
        again: True if the same call may succeed later.
        retry_after: seconds to wait before the next call, if the endpoint asked for a pause.
        refused: positions of texts for which no call will succeed.
        vectors: vectors of texts for which the call succeeded, by position.
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
        """The message, with the address of the endpoint removed."""
        return hide_addresses(str(self), "the endpoint")


class RerankFailed(HoldfastError):
    """The reranker returned no scores: it did not answer, rejected the request, or its response was not valid.

    The search then keeps the order of its own ranking.
    """

    code = "rerank_failed"
    http_status = 502

    @property
    def public_message(self) -> str:
        """The message, with the address of the endpoint removed."""
        return hide_addresses(str(self), "the endpoint")
