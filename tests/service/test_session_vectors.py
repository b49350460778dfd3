"""Session expiry, import, export and forks: the tables of what mistral.rs does and promises, as tests of the gateway.
Rows follow the promised behaviour; where docs/reconcile.md differs, it takes precedence, and the test says so.
Words are those of the tables; `r` is the model's answer to the request of the row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.lifecycle.settings import LifeSettings
from tests.service.simulator.gateway import Gateway, open_gateway
from tests.service.simulator.notation import message, messages, words
from tests.service.simulator.vectors import (
    URLS,
    create_session,
    good,
    live,
    make_image_message,
    pictures,
    whole,
    with_picture,
)

Data = dict[str, Any]

# -- round trip -------------------------------------------------------------------


async def test_export_can_be_imported_under_a_new_id() -> None:
    """Messages and images are equal; fields of a call or a process are not exported."""
    async with open_gateway() as gateway:
        await with_picture(gateway, "tc1 t1 a1")
        good(
            await gateway.chat(
                messages("u2"),
                session_id="s",
                temperature=0.5,
                tools=[{"type": "function", "function": {"name": "find"}}],
            )
        )
        exported = good(await gateway("GET", "/v1/sessions/s")).json
        assert not {"temperature", "tools", "interpreter"} & set(exported)
        assert (await gateway("PUT", "/v1/sessions/t", exported)).status in (200, 201)
        again = good(await gateway("GET", "/v1/sessions/t")).json
        plain = [{name: one.get(name) for name in ("role", "content", "tool_calls")} for one in exported["messages"]]
        assert plain == [
            {name: one.get(name) for name in ("role", "content", "tool_calls")} for one in again["messages"]
        ]
        assert exported["images"] == again["images"]
        assert len(exported["images"]) == 1
        good(await gateway.chat(messages("u3"), session_id="t"))
        assert pictures(gateway.speaker.prompts[-1]) == URLS[:1]


async def test_import_requires_messages_and_ignores_unknown_keys() -> None:
    """The list of messages may be empty."""
    async with open_gateway() as gateway:
        assert 400 <= (await gateway("PUT", "/v1/sessions/s", {})).status < 500
        assert (await gateway("GET", "/v1/sessions/s")).status == 404
        assert (await gateway("PUT", "/v1/sessions/s", {"messages": [], "files": [], "x_unknown": 1})).status == 200
        assert await live(gateway) == ""
        shape = {"messages": [make_image_message("u1", {"type": "image"})], "images": ["!no base64!"]}
        refused = await gateway("PUT", "/v1/sessions/t", shape)
        assert refused.status == 400
        assert "base64" in refused.json["error"]["message"]


async def test_sessions_of_mistral_rs_can_be_imported() -> None:
    """`images` are in the order of their placeholders in the messages."""
    data = [url.partition(",")[2] for url in URLS]
    shape = {
        "messages": [
            make_image_message("u1", {"type": "image"}),
            message("a1"),
            make_image_message("u2", {"type": "image"}),
        ],
        "images": data,
        "videos": [],
    }
    async with open_gateway() as gateway:
        assert (await gateway("PUT", "/v1/sessions/s", shape)).status == 200
        good(await gateway.chat(messages("u3"), session_id="s"))
        assert [url.partition(",")[2] for url in pictures(gateway.speaker.prompts[-1])] == data


# -- HTTP -------------------------------------------------------------------------


async def test_session_routes_get_put_and_delete() -> None:
    async with open_gateway() as gateway:
        assert (await gateway("GET", "/v1/sessions/s")).status == 404
        assert (await gateway("PUT", "/v1/sessions/s", {"messages": messages("u1 a1")})).status == 200
        assert (await gateway("PUT", "/v1/sessions/s", {"messages": messages("u2 a2")})).status == 200
        exported = good(await gateway("GET", "/v1/sessions/s")).json["messages"]
        assert words([{"role": one["role"], "content": one["content"]} for one in exported]) == "u2 a2"
        assert await whole(gateway) == "u2 a2"
        assert (await gateway("DELETE", "/v1/sessions/s")).status == 200
        assert (await gateway("GET", "/v1/sessions/s")).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_contains_the_session_id(stream: bool) -> None:
    """In the body, and in a stream only in the final chunk; a generated id can be used again."""
    async with open_gateway() as gateway:
        answer = good(await gateway.chat(messages("u1"), stream=stream))
        named = answer.last["session_id"]
        if stream:
            assert ["session_id" in event for event in answer.events] == [False] * (len(answer.events) - 1) + [True]
        assert (await gateway.hf.store.get(SessionRef("default", named))).messages == 2
        again = good(await gateway.chat(messages("u2"), session_id=named))
        assert again.session_id == named
        assert await live(gateway, named) == "u1 r u2 r"


# -- fork ---------------------------------------------------------------------------

FORKED = {"one turn": (0, "u1 tc1 t1 a1"), "two turns": (1, "u1 tc1 t1 a1 u2 a2"), "all": (None, "u1 tc1 t1 a1 u2 a2")}


@pytest.mark.parametrize("how", FORKED)
async def test_fork_copies_whole_turns(how: str) -> None:
    """An edit of the fork does not change the source."""
    at_turn, wanted = FORKED[how]
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 tc1 t1 a1 u2 a2")
        body = {"id": "f", **({"at_turn": at_turn} if at_turn is not None else {})}
        assert (await gateway("POST", "/v1/sessions/s/fork", body)).status == 201
        assert await live(gateway, "f") == wanted
        good(await gateway.chat(messages("u1 a1' u9"), session_id="f"))
        assert await live(gateway, "f") == "u1 tc1 t1 a1' u9 r"
        assert await whole(gateway) == "u1 tc1 t1 a1 u2 a2"


@pytest.mark.parametrize("at_turn", [-1, 8])
async def test_fork_at_a_missing_turn_is_rejected(at_turn: int) -> None:
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1 u2 a2")
        assert (await gateway("POST", "/v1/sessions/s/fork", {"at_turn": at_turn, "id": "f"})).status == 400
        assert (await gateway("GET", "/v1/sessions/f")).status == 404


async def test_fork_of_a_missing_session_is_not_found() -> None:
    async with open_gateway() as gateway:
        assert (await gateway("POST", "/v1/sessions/none/fork", {})).status == 404


# -- store --------------------------------------------------------------------------

CAP, TTL = 128, 1_800_000


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now

    def at(self, seconds: int) -> None:
        self.now = 10**12 + seconds * 1000


async def active_names(gateway: Gateway) -> set[str]:
    """Sweep and return the ids of active sessions."""
    await gateway.hf.sweep()
    page = await gateway.hf.sessions(limit=1000)
    return {session.id for session in page.sessions if session.status == "active"}


@asynccontextmanager
async def open_with_cap() -> AsyncIterator[tuple[Gateway, Seconds]]:
    """Open a gateway with 128 sessions of half an hour, and its clock."""
    clock = Seconds()
    async with open_gateway(life=LifeSettings.of(session_ttl="30m", max_sessions=128), clock=clock) as gateway:
        yield gateway, clock


async def fill(gateway: Gateway, clock: Seconds) -> None:
    """Store s0 to s127, one second apart."""
    for at in range(CAP):
        clock.at(at)
        await create_session(gateway, "u1 a1", f"s{at}")


async def test_least_recently_used_session_is_evicted_at_the_cap() -> None:
    async with open_with_cap() as (gateway, clock):
        await fill(gateway, clock)
        clock.at(200)
        await create_session(gateway, "u1 a1", "new")
        assert await active_names(gateway) == {f"s{at}" for at in range(1, CAP)} | {"new"}


async def test_used_session_is_not_evicted() -> None:
    """Building a context counts as use; export, list and read do not."""
    async with open_with_cap() as (gateway, clock):
        await fill(gateway, clock)
        clock.at(300)
        await (await gateway.hf.session("s0")).context()
        for path in ("/v1/sessions/s1", "/v1/sessions", "/v1/sessions/s1/messages"):
            good(await gateway("GET", path))
        await create_session(gateway, "u1 a1", "new")
        assert await active_names(gateway) == {f"s{at}" for at in range(CAP) if at != 1} | {"new"}


async def test_append_to_an_existing_session_evicts_none() -> None:
    async with open_with_cap() as (gateway, clock):
        await fill(gateway, clock)
        clock.at(200)
        await (await gateway.hf.session("s127")).append(messages("u2"))
        assert await active_names(gateway) == {f"s{at}" for at in range(CAP)}


async def test_session_expires_after_its_idle_time() -> None:
    """Whether or not another session is written."""
    async with open_with_cap() as (gateway, clock):
        clock.at(0)
        await create_session(gateway, "u1 a1", "a")
        clock.at(TTL // 1000 - 1)
        await create_session(gateway, "u1 a1", "b")
        assert (await gateway("GET", "/v1/sessions/a")).status == 200
        clock.at(TTL // 1000)
        assert (await gateway("GET", "/v1/sessions/a")).status == 404
        assert (await gateway("GET", "/v1/sessions/b")).status == 200
        assert await active_names(gateway) == {"b"}


async def test_expired_session_is_not_matched() -> None:
    """A request that continues it starts a new session."""
    async with open_with_cap() as (gateway, clock):
        clock.at(0)
        await create_session(gateway, "u1 a1", "A")
        clock.at(TTL // 1000)
        assert good(await gateway.chat(messages("u1 a1 u2"))).session["reconciled"] == "new"


async def test_deleting_twice_reports_false_the_second_time() -> None:
    async with open_with_cap() as (gateway, _):
        await create_session(gateway, "u1 a1")
        ref = SessionRef("default", "s")
        assert [await gateway.hf.delete(ref), await gateway.hf.delete(ref)] == [True, False]
