"""Requests of people without names share nothing: no session, no reply, and no message of one person in another's prompt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import Served, gateway, user
from tests.behaviour.kit.placing import SERVERS, people, reply_to

Data = dict[str, Any]


async def send(served: Served, *messages: Data, headers: dict[str, str] | None = None, **fields: Any) -> Data:
    """Send a request that names nobody; return the decoded answer."""
    body = {"model": "gpt-4o", "messages": list(messages), **fields}
    answer = await served.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def resends(served: Served, headers: dict[str, str] | None = None, **fields: Any) -> bool:
    """Return True if a history that equals a session of the user `default` continues that session."""
    first = await send(served, user("hi"), **fields)
    history = [user("hi"), first["choices"][0]["message"], user("more")]
    second = await send(served, *history, headers=headers, **fields)
    return bool(second["session_id"] == first["session_id"])


@pytest.mark.parametrize(
    ("config", "headers", "known"),
    [
        ("", {}, True),
        ("", {"forwarded": "for=192.0.2.1"}, False),
        ("", {"x-forwarded-for": "192.0.2.1"}, False),
        ("gateway: {single_user: true}", {"x-forwarded-for": "192.0.2.1"}, True),
        ("gateway: {match: anyone}", {"x-forwarded-for": "192.0.2.1"}, True),
        ("gateway: {single_user: false, match: anyone}", {}, True),
        ("auth: {required: false}", {}, True),
    ],
)
async def test_requests_without_a_name_are_matched_if_they_come_from_one_person(
    config: str, headers: dict[str, str], known: bool
) -> None:
    async with gateway(reply_to, config) as served:
        assert await resends(served, headers) is known


async def test_server_with_a_key_has_several_users() -> None:
    """Even if requests need no key."""
    async with gateway(reply_to, "auth: {required: false}") as served:
        await served.create_key()
        assert not await resends(served)


@pytest.mark.parametrize("server", SERVERS)
async def test_only_a_name_of_ones_own_lets_a_request_be_matched(server: str) -> None:
    """No request can ask to be matched without a name; and `default` has the sessions of all who name nobody."""
    async with people(server) as served:
        assert not await resends(served, session_match="on")
        assert not await resends(served, user="default")
        assert await resends(served, user="ada")


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("key", ["retry-1", "0123456789abcdef"])
async def test_idempotency_key_without_a_name_must_be_long(server: str, key: str) -> None:
    """A short one could be another person's."""
    async with people(server) as served:
        sent = {"idempotency-key": key}
        first, second = [await send(served, user("hi"), headers=sent) for _ in range(2)]
        counts = len(key) == 16
        assert (first["session_id"] == second["session_id"]) is counts
        codes = [one["code"] for one in first["session"].get("warnings", ())]
        assert codes == (["unidentified"] if counts else ["short_idempotency_key"])
        named = [await send(served, user("hi"), headers=sent, user="ada") for _ in range(2)]
        assert named[0]["session_id"] == named[1]["session_id"]


DEVICE, ACCOUNT = "d" * 64, "0a7fc1a2-51cf-4e9b-a1a6-5d2f0d7a5c11"
FIRST, SECOND = "57a121ec-f78c-48c3-a745-e3036a3ecc33", "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"


@pytest.mark.parametrize(
    ("given", "owner"),
    [
        (f"user_{DEVICE}_account__session_%s", DEVICE),
        (f"user_{DEVICE}_account_{ACCOUNT}_session_%s", ACCOUNT),
        (f'{{"device_id": "{DEVICE}", "account_uuid": "", "session_id": "%s"}}', DEVICE),
        (f'{{"device_id": "{DEVICE}", "account_uuid": "{ACCOUNT}", "session_id": "%s"}}', ACCOUNT),
        ('{"session_id": "s"}', '{"session_id": "s"}'),
        ("user_ada_session_1", "user_ada_session_1"),
    ],
)
async def test_claude_code_is_one_user_with_many_sessions(given: str, owner: str) -> None:
    """Its user id holds a device, an account and a session. The model gets the user."""
    async with gateway(reply_to) as served:
        opened = set()
        for session in (FIRST, SECOND):
            metadata = {"user_id": given % session if "%" in given else given}
            body = {"max_tokens": 9, "metadata": metadata, "messages": [user(f"I live in Linz. {session}")]}
            answer = await served.http.post("/v1/messages", json={"model": "default", **body})
            opened.add(answer.json()["session_id"])
            assert served.sent["user"] == owner
        listed = (await served.http.get("/v1/sessions")).json()["data"]
        assert ({one["user_id"] for one in listed}, len(opened)) == ({owner}, 2)
