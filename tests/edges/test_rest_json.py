"""Strict JSON in request bodies: no duplicate keys, no bombs, and no false alarms."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import strategies as st

from holdfast import limits
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.wire.strict_json import decode_json
from tests.edges.rest_kit import BODIES, assert_error, create_session_s
from tests.edges.server import gateway

DOUBLED = [
    (b'{"messages": [], "messages": []}', "messages"),
    (b'{"a": {"b": 1, "c": 2, "b": 3}}', "b"),
    (b'{"messages": [{"role": "user", "role": "tool", "content": "x"}]}', "role"),
    (b'{"a": "x:y:z", "\\u0061": 1}', "a"),
    (b'{"a:b": 1, "a\\u003ab": 2}', "a:b"),
    (b'{"a": "\\u003a", "b": 1, "b": 2}', "b"),
    (b'{"": 1, "": 2}', ""),
    (b'{"k": {"x": 1}, "k": {"x": 1}}', "k"),
]


@pytest.mark.parametrize(("body", "key"), DOUBLED)
async def test_duplicate_key_is_refused(body: bytes, key: str) -> None:
    """With a 400 that names it, because two parsers could read it differently."""
    async with gateway([]) as (served, _):
        await create_session_s(served)
        for method, url in BODIES:
            error = assert_error(await served.http.request(method, url, content=body), 400)
            assert error["param"] == key
            assert f"{key!r} appears twice" in error["message"]
        assert await served.log() == [("user", "hi")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(':"\\u03a{}[],ab\x00é', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(':"\\{},ab', max_size=4), inner, max_size=4),
    max_leaves=20,
)


MANY = limits.VALUES + 10
BOMBS: dict[str, bytes] = {
    "a million keys": b"{" + b",".join(b'"k%d":1' % at for at in range(MANY)) + b"}",
    "a million lists": b"[" + b"[]," * MANY + b"[]]",
    "a million objects": b'{"a":[' + b"{}," * MANY + b"{}]}",
    "a million texts": b"[" + b'"",' * MANY + b'""]',
    "open lists": b"[" * MANY,
    "an open text": b'["' + b'\\",' * MANY,
    "an open text of quotes": b'["' + b'\\"' * MANY + b"\\",
}


@pytest.mark.parametrize("name", BOMBS)
def test_json_bomb_is_refused_before_decoding(name: str) -> None:
    """By its number of values or as invalid JSON; a long text full of commas is accepted."""
    with pytest.raises((TooLarge, InvalidRequest)) as raised:
        decode_json(BOMBS[name])
    if "open text" not in name:
        assert str(limits.VALUES) in str(raised.value)
    assert decode_json(json.dumps({"text": ",[{" * MANY}).encode()) == {"text": ",[{" * MANY}


async def test_million_keys_over_http_are_a_413() -> None:
    """The server answers others meanwhile."""
    async with gateway([]) as (served, _):
        sending = asyncio.create_task(served.http.post("/v1/sessions", content=BOMBS["a million keys"]))
        assert (await served.http.get("/healthz")).status_code == 200
        assert str(limits.VALUES) in assert_error(await sending, 413)["message"]
