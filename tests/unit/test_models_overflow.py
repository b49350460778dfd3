"""Context-overflow errors of every provider are recognized with the numbers they contain."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ContextTooLong, ModelError
from holdfast.models.answer import AnswerReader
from holdfast.models.failures import make_upstream_error

# -- inside a stream -------------------------------------------------------------------

MESSAGE = "prompt is too long: 205001 tokens > 200000 maximum"
EVENTS = [
    {"error": {"message": MESSAGE, "code": 400}},
    {"error": MESSAGE},
    {"type": "error", "error": {"type": "invalid_request_error", "message": MESSAGE}},
    {"object": "error", "message": MESSAGE, "type": "BadRequestError", "code": 400},
    {"id": "c", "choices": None, "error_type": "BadRequestError", "error_message": MESSAGE},
    {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": MESSAGE}}},
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_overflow_inside_a_successful_response_is_recognized(event: dict[str, Any], streamed: bool) -> None:
    data = msgspec.json.encode(event)
    reader = AnswerReader("http://model")
    with pytest.raises(ContextTooLong) as caught:  # noqa: PT012 - whichever of the two comes first
        list(reader.feed(b": waiting\n\ndata: " + data + b"\n\n" if streamed else data))
        list(reader.end())
    assert (caught.value.context_limit, caught.value.requested) == (200_000, 205_001)


@given(
    st.text(max_size=200),
    st.dictionaries(st.sampled_from(["code", "type", "n_ctx", "metadata"]), st.none() | st.text()),
)
def test_any_error_body_is_reported(words: str, body: dict[str, Any]) -> None:
    assert isinstance(make_upstream_error(400, {**body, "message": words}, where="w"), ModelError)
