"""Notes and origins over HTTP: written and listed with the messages of a session, and set by no chat client."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.stores.log import Append
from tests.edges.rest_kit import append_messages, assert_error, assistant, create_session, path, user
from tests.edges.server import Served, gateway

NOTE = {"role": "note", "origin": {"event": "handoff", "to": [1, None]}, "metadata": {"by": "my framework"}}


async def list_messages(served: Served, **params: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await served.http.get(path("s", "messages"), params=params)).json()["data"]
    return listed


async def test_notes_and_origins_are_written_and_listed() -> None:
    """With their role and payload; a context and the message count leave notes out."""
    async with gateway([]) as (served, _):
        await create_session(served)
        origin = {"raw": ["x"]}
        written = await append_messages(served, user("hi", origin=origin), NOTE, assistant("ho"))
        assert written.status_code == 200
        listed = await list_messages(served)
        assert listed == written.json()["data"]
        assert [one["role"] for one in listed] == ["user", "note", "assistant"]
        assert listed[0]["origin"] == origin
        note = {name: listed[1][name] for name in NOTE}
        assert (note, listed[1]["seq"], listed[1]["turn_id"], listed[1]["tokens"]) == (NOTE, 1, 0, 0)
        assert not any("retired_by" in one for one in await list_messages(served, retired=True))
        pages = [await list_messages(served, limit=1, after=at) for at in (0, 1)]
        assert [page[0]["role"] for page in pages] == ["note", "assistant"]
        session = (await served.http.get("/v1/sessions/s")).json()
        assert session["message_count"] == 2
        assert session["messages"] == listed
        context = (await served.http.post(path("s", "context"), json={})).json()
        assert [one["role"] for one in context["messages"]] == ["user", "assistant"]
        assert "origin" not in str(context["messages"])
        explained = (await served.http.get(path("s", "explain"), params={"seq": 1})).json()
        assert (explained["messages"][0]["state"], explained["messages"][0]["decision"]) == ("no", "note")


async def test_a_note_is_erased_and_cannot_be_changed() -> None:
    async with gateway([]) as (served, _):
        await create_session(served)
        await append_messages(served, user("hi"), NOTE)
        assert_error(await served.http.patch(path("s", "messages", "1"), json={"pinned": True}), 404)
        erased = (await served.http.delete(path("s", "messages", "1"))).json()
        assert (erased["deleted"], erased["erased"], erased["tokens"]) == (True, True, 0)
        assert "origin" not in (await list_messages(served))[1]


async def test_an_export_is_imported_with_its_notes() -> None:
    async with gateway([]) as (served, _):
        await create_session(served)
        await append_messages(served, NOTE, user("hi"), NOTE)
        await append_messages(served, user("ho", origin=7))
        export = (await served.http.get("/v1/sessions/s", params={"retired": True})).json()
        put = await served.http.put("/v1/sessions/t", json={**export, "id": "t"})
        assert put.status_code in (200, 201), put.text
        copy = (await served.http.get("/v1/sessions/t", params={"retired": True})).json()
        assert copy["messages"] == export["messages"]


@pytest.mark.parametrize(
    "wrong", [{"role": "note", "pinned": True}, {"role": "note", "name": "x"}, {"role": "note", "content": []}]
)
async def test_an_invalid_note_is_refused(wrong: dict[str, Any]) -> None:
    async with gateway([]) as (served, _):
        await create_session(served)
        error = assert_error(await append_messages(served, user("hi"), wrong), 400)
        assert error["param"].startswith("messages[1].")
        assert await list_messages(served) == []


async def test_another_user_reads_no_note() -> None:
    """Neither by the list nor by its number."""
    async with gateway([]) as (served, _):
        await create_session(served, user_id="ada")
        written = await served.http.post(path("s", "messages"), params={"user_id": "ada"}, json={"messages": [NOTE]})
        assert written.status_code == 200
        for user_id in ("bob", "default"):
            params = {"user_id": user_id}
            assert_error(await served.http.get(path("s", "messages"), params=params), 404)
            assert_error(await served.http.delete(path("s", "messages", "0"), params=params), 404)
            assert_error(await append_messages_as(served, user_id), 404)


async def append_messages_as(served: Served, user_id: str) -> Any:
    return await served.http.post(path("s", "messages"), params={"user_id": user_id}, json={"messages": [NOTE]})


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_session_with_notes_is_recognised(elsewhere: bool) -> None:
    """By a client that resends the conversation without an id or user, also if another server wrote the notes."""
    async with gateway(["one", "two", "three"]) as (served, _):
        messages, ids = [], []
        for text, answer in (("a", "one"), ("b", "two"), ("c", "three")):
            messages.append(user(text))
            chat = await served.http.post("/v1/chat/completions", json={"model": "m", "messages": messages})
            messages.append(assistant(answer))
            ids.append(chat.headers["x-session-id"])
            if elsewhere:
                entry = NewEntry(message=Message(role="note", origin=1), tokens=0, timestamp=1)
                write = Append(entries=[entry, entry], timestamp=served.hf.clock())
                await served.hf.store.append(SessionRef("default", ids[-1]), write)
            else:
                assert (await append_messages(served, NOTE, NOTE, session_id=ids[-1])).status_code == 200
        assert len(set(ids)) == 1
        listed = (await served.http.get(path(ids[0], "messages"))).json()["data"]
        assert [one["role"] for one in listed] == ["user", "assistant", "note", "note"] * 3


async def test_a_chat_client_sets_neither_notes_nor_origins() -> None:
    """`origin` is passed on as any unknown field, as before, and a note is no message."""
    async with gateway(["hey"]) as (served, upstream):
        await create_session(served)
        await append_messages(served, user("hi", origin={"secret": 1}), NOTE, assistant("ho", origin=2))
        chat = {"model": "m", "session_id": "s", "session_mode": "delta", "messages": [user("he", origin="theirs")]}
        answer = await served.http.post("/v1/chat/completions", json=chat)
        assert answer.status_code == 200, answer.text
        sent = upstream.requests[-1].body["messages"]
        assert [one["role"] for one in sent] == ["user", "assistant", "user"]
        assert [one.get("origin") for one in sent] == [None, None, "theirs"]
        listed = (await list_messages(served))[3]
        assert (listed["content"], listed.get("origin"), listed["client_origin"]) == ("he", None, "theirs")
        refused = await served.http.post("/v1/chat/completions", json={**chat, "messages": [NOTE]})
        assert_error(refused, 400)
