"""The client for Anthropic's Messages API, against a real server on a socket: requests, replies and connections."""

from __future__ import annotations

import pytest

from holdfast.models.anthropic import AnthropicModel
from holdfast.models.codecs.chat import decode_request
from holdfast.testing import Reply
from tests.chunks import collect
from tests.service.anthropic_kit import HI, KEY, SEARCH, open_model

# -- requests --------------------------------------------------------------------------


def test_repr_does_not_contain_the_key() -> None:
    assert repr(AnthropicModel(api_key=KEY, model="m")) == "AnthropicModel('m', at 'https://api.anthropic.com')"


@pytest.mark.parametrize(
    ("host", "handed", "sent"),
    [
        ("api.anthropic.com", {"Authorization": "Bearer sk-ant-api03-client"}, {"x-api-key": "sk-ant-api03-client"}),
        ("api.anthropic.com", {"x-api-key": "sk-ant-api03-client"}, {"x-api-key": "sk-ant-api03-client"}),
        ("api.anthropic.com", {"Authorization": "Bearer sk-ant-oat01-x"}, {"authorization": "Bearer sk-ant-oat01-x"}),
        ("router.example", {"Authorization": "Bearer k"}, {"x-api-key": "k", "authorization": "Bearer k"}),
        ("api.anthropic.com", {"Authorization": "Basic eA=="}, {"authorization": "Basic eA=="}),
        ("api.anthropic.com", {}, {"x-api-key": KEY}),
    ],
)
def test_clients_key_replaces_the_configured_key(host: str, handed: dict[str, str], sent: dict[str, str]) -> None:
    """In the header that the host accepts. Errors do not contain it."""
    call = AnthropicModel(f"https://{host}", KEY)._build_request(decode_request(HI), handed)
    assert {name: call.headers[name] for name in ("x-api-key", "authorization") if name in call.headers} == sent
    assert all(value.rpartition(" ")[2] in call.secrets for value in sent.values())


# -- replies -------------------------------------------------------------------------------


async def test_paused_reply_is_continued() -> None:
    """The caller gets one reply. Its usage has the prompt of the first request and the completions of both."""
    paused = Reply(message={"content": SEARCH[:2]}, finish_reason="pause_turn", usage={"prompt_tokens": 10})
    async with open_model([paused, Reply(message={"content": SEARCH[2:]}, usage={"prompt_tokens": 50})]) as (
        upstream,
        model,
        _,
    ):
        completion = await collect(model.stream(HI))
        first, second = (received.body for received in upstream.requests)
    assert upstream.violations == []
    assert second == {**first, "messages": [*first["messages"], {"role": "assistant", "content": SEARCH[:2]}]}
    message = completion["choices"][0]["message"]
    assert message["content"] == "Searching. It is kelp."
    assert message["content_blocks"] == [{**block, "index": at} for at, block in enumerate(SEARCH)]
    assert completion["choices"][0]["finish_reason"] == "stop"
    usage = completion["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["input_tokens"]) == (10, 10, 60)


async def test_continuations_of_a_paused_reply_are_limited() -> None:
    async with open_model(lambda _: Reply(message={"content": SEARCH[:2]}, finish_reason="pause_turn")) as (
        upstream,
        model,
        _,
    ):
        completion = await collect(model.stream(HI))
        assert len(upstream.requests) == 11
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["choices"][0]["native_finish_reason"] == "pause_turn"
