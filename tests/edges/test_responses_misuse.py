"""Misuse of the Responses and Conversations APIs: what a hostile client sends, and what the server does about it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.limits import Limits
from holdfast.stores.sessions import SessionPatch
from holdfast.wire.response_ids import Place, make_conversation_id
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway


async def create(served: Served, **fields: Any) -> Any:
    """Send a request to `/v1/responses`; return the response."""
    return await served.http.post("/v1/responses", json={"model": "gpt-4o", **fields})


# -- references ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"])
async def test_references_cannot_make_a_request_larger_than_a_body(path: str) -> None:
    """A reference is short and its item may be long, so many references to one item would be a large request."""
    limits = Limits(body=100_000)
    async with gateway(lambda _: "word " * 1000, limits=limits) as (served, _):
        item = (await create(served, input="Hello!")).json()["output"][0]["id"]
        reference, question = {"type": "item_reference", "id": item}, {"role": "user", "content": "And?"}
        few = {"model": "gpt-4o", "input": [reference] * 3 + [question], "store": False}
        assert (await served.http.post(path, json=few)).status_code == 200
        before = len((await served.hf.sessions()).sessions)
        refused = await served.http.post(path, json={**few, "input": [reference] * 300 + [question]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, "input")
        assert "100000 bytes" in refused.json()["error"]["message"]
        assert len((await served.hf.sessions()).sessions) == before


@pytest.mark.parametrize("reference", [{}, {"id": None}, {"id": []}, {"id": {}}, {"id": 5}, {"id": "msg_1"}])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"])
async def test_reference_without_a_valid_id_is_refused(path: str, reference: dict[str, Any]) -> None:
    """It is the client's mistake, also if the id has a type that is no key of a table."""
    async with gateway(lambda _: "ok") as (served, _):
        sent = {"model": "gpt-4o", "input": [{"type": "item_reference", **reference}, {"role": "user", "content": "x"}]}
        refused = await served.http.post(path, json=sent)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


# -- sessions of other users ------------------------------------------------------


async def begin_twins(served: Served) -> dict[str, Any]:
    """Create a session `s` of ada, in which bob takes part, and one of bob. Return their first responses by user."""
    made = {}
    for user_id in ("ada", "bob"):
        said = {"session_id": "s", "user": user_id, "input": f"I am {user_id}."}
        made[user_id] = (await create(served, **said)).json()
    patch = SessionPatch(metadata={"participants": ["bob"]})
    await served.hf.store.update(SessionRef("ada", "s"), patch, timestamp=served.hf.clock())
    return made


def name_place(kind: str, response: Any) -> dict[str, Any]:
    """Return the field that names the place of a response."""
    if kind == "conversation":
        return {"conversation": make_conversation_id(response["session_id"])}
    return {"previous_response_id": response["id"]}


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
async def test_program_continues_a_response_of_the_named_owner(kind: str) -> None:
    """The author of the message is another user, who has a session with the same id."""
    async with gateway(lambda _: "ok") as (served, upstream):
        made = await begin_twins(served)
        said = {"input": "And?", "user": "bob", "session_user": "ada"}
        answer = await create(served, **said, **name_place(kind, made["ada"]))
        assert answer.status_code == 200, answer.text
        assert [one["content"] for one in upstream.requests[-1].body["messages"]] == ["I am ada.", "ok", "And?"]
        entries = await served.hf.store.entries(SessionRef("ada", "s"))
        assert (entries[2].metadata or {})["user"] == "bob"
        assert len(await served.log("s", "bob")) == 2


async def test_response_of_another_user_than_the_owner_is_not_found() -> None:
    """Its place would be used in the owner's session with the same id."""
    async with gateway(lambda _: "ok") as (served, upstream):
        made = await begin_twins(served)
        place = name_place("previous_response_id", made["bob"])
        for user in ("bob", "ada", None):
            refused = await create(served, input="And?", user=user, session_user="ada", **place)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert len(upstream.requests) == 2
        assert [len(await served.log("s", user)) for user in ("ada", "bob")] == [2, 2]


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("whose", ["ada", "bob"])
async def test_participant_cannot_name_a_session_by_a_response(kind: str, whose: str) -> None:
    """The response would be one of the participant's own session with the same id."""
    async with gateway(lambda _: "ok") as (served, upstream):
        made = await begin_twins(served)
        key = bearer(await create_stored_key(served.hf, user_id="bob"))
        said = {"model": "gpt-4o", "input": "And?", "session_user": "ada", **name_place(kind, made[whose])}
        refused = await served.http.post("/v1/responses", json=said, headers=key)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "session_user")
        assert "by session_id" in refused.json()["error"]["message"]
        assert len(upstream.requests) == 2
        assert [len(await served.log("s", user)) for user in ("ada", "bob")] == [2, 2]


# -- lists of items --------------------------------------------------------------


async def test_page_of_input_items_reads_only_its_messages() -> None:
    """However many items the request had: a client could ask for one of them again and again."""
    sent = [{"role": "user", "content": f"Line {at}"} for at in range(300)]
    async with gateway(lambda _: "ok") as (served, _):
        made = (await create(served, input=sent)).json()["id"]
        path = f"/v1/responses/{made}/input_items"
        for order, texts in (
            ("asc", [one["content"] for one in sent]),
            ("desc", [one["content"] for one in sent[::-1]]),
        ):
            found, after, pages = list[str](), "", 0
            while pages == 0 or after:
                page = (await served.http.get(f"{path}?order={order}&limit=100{after}")).json()
                found += [item["content"][0]["text"] for item in page["data"]]
                after, pages = f"&after={page['last_id']}" if page["has_more"] else "", pages + 1
            assert (found, pages) == (texts, 3)
        read: list[int] = []
        inner = served.hf.store.entries

        async def count_entries(*args: Any, **kwargs: Any) -> Any:
            entries = await inner(*args, **kwargs)
            read.append(len(entries))
            return entries

        served.hf.store.entries = count_entries  # type: ignore[method-assign]
        first = (await served.http.get(f"{path}?limit=1")).json()
        assert [item["content"][0]["text"] for item in first["data"]] == ["Line 299"]
        assert sum(read) < 100
        for unknown in ("x", made, first["last_id"].replace("n0", "n1"), "msg_" + "0" * 32 + "_ffffffffffffffffen0"):
            refused = await served.http.get(f"{path}?after={unknown}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "item_not_found")


async def test_list_goes_on_after_an_item_that_was_deleted() -> None:
    """The id of the last page's end is still a place in the log, and no item after it is left out."""
    async with gateway() as (served, _):
        conversation = (await served.http.post("/v1/conversations", json={})).json()["id"]
        path, ids = f"/v1/conversations/{conversation}/items", list[str]()
        for begin in range(0, 60, 20):
            items = [{"role": "user", "content": f"Line {begin + at}"} for at in range(20)]
            ids += [one["id"] for one in (await served.http.post(path, json={"items": items})).json()["data"]]
        assert (await served.http.delete(f"{path}/{ids[-1]}")).status_code == 200
        page = (await served.http.get(f"{path}?limit=100&after={ids[-1]}")).json()
        assert [item["id"] for item in page["data"]] == ids[-2::-1]


# -- tools -----------------------------------------------------------------------


async def test_tools_of_namespaces_count_as_tools() -> None:
    """The model gets each of them as a function, so a namespace is no way around the limit. One that is no list is refused."""
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    async with gateway(lambda _: "ok", limits=Limits(tools=4)) as (served, _):
        for count, status in ((3, 200), (4, 413)):
            tools = [
                {"type": "namespace", "name": "n", "tools": [{**function, "name": f"f{at}"} for at in range(count)]}
            ]
            sent = await create(served, input="Hello!", tools=tools)
            assert sent.status_code == status
        assert (sent.json()["error"]["param"], "gateway.max_tools is 4" in sent.text) == ("tools", True)
        refused = await create(served, input="Hello!", tools=[{"type": "namespace", "name": "n", "tools": 5}])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].tools")


# -- values of another type ------------------------------------------------------


@pytest.mark.parametrize("value", [[], {}, ["x"], {"type": "x"}, 5, True, None])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"])
async def test_value_of_another_type_is_refused_by_name(path: str, value: Any) -> None:
    """Also where the value of a field is looked up in a table."""
    async with gateway(lambda _: "ok") as (served, _):
        for fields, param in (
            ({"input": [{"type": value}]}, "input[0].type"),
            ({"input": [{"role": "user", "content": [{"type": value, "text": "x"}]}]}, "input[0].content[0]"),
            ({"input": "x", "instructions": [{"type": value}]}, "instructions[0].type"),
            ({"input": "x", "include": {"a": value}}, "include"),
        ):
            refused = await served.http.post(path, json={"model": "gpt-4o", **fields})
            assert refused.status_code == 400, (fields, refused.text)
            assert refused.json()["error"]["param"].startswith(param), (fields, refused.text)


# -- metadata --------------------------------------------------------------------


async def test_metadata_of_a_conversation_cannot_replace_what_is_not_text() -> None:
    """The participants of a session are in its metadata. A client of this API sees only texts, so it changes only texts."""
    async with gateway() as (served, _):
        made = (await served.http.post("/v1/conversations", json={"metadata": {"topic": "rome"}})).json()
        path = f"/v1/conversations/{made['id']}"
        refused = await served.http.post(path, json={"metadata": {"participants": "carl"}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata.participants")
        (session,) = (await served.hf.sessions()).sessions
        changes = {"metadata": {**session.metadata, "participants": ["bob"], "tags": [1]}}
        assert (await served.http.patch(f"/v1/sessions/{session.id}", json=changes)).status_code == 200
        for name in ("participants", "tags"):
            refused = await served.http.post(path, json={"metadata": {name: "carl"}})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, f"metadata.{name}")
        assert (await served.http.post(path, json={"metadata": {"topic": "oslo"}})).json()["metadata"] == {
            "topic": "oslo"
        }
        after = await served.hf.store.get(SessionRef("default", session.id))
        assert after.metadata == {"topic": "oslo", "participants": ["bob"], "tags": [1]}


# -- sealed items ----------------------------------------------------------------


async def test_erased_text_does_not_come_back_through_a_compaction_item() -> None:
    """An item quotes messages. If they are erased later, the item cannot write them into another session."""
    async with gateway(lambda _: "Flight LH123 costs 200 euros.") as (served, upstream):
        items: list[Any] = [{"role": "user", "content": "My code is zebra."}]
        first = (await create(served, input=items, store=False)).json()
        compacted = await served.http.post(
            "/v1/responses/compact", json={"model": "gpt-4o", "input": [*items, *first["output"]]}
        )
        item = compacted.json()["output"][-1]
        assert item["type"] == "compaction"
        question = [item, {"role": "user", "content": "And now?"}]
        answered = await create(served, input=question, store=False, session_id="before")
        assert (answered.status_code, "zebra" in str(await served.log("before"))) == (200, True)
        path = f"/v1/sessions/{first['session_id']}/messages/0"
        assert (await served.http.delete(path)).status_code == 200
        for route in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
            body = {"model": "gpt-4o", "input": question, "store": False, "session_id": "elsewhere"}
            refused = await served.http.post(route, json=body)
            assert refused.json()["error"]["code"] == "invalid_encrypted_content", route
            assert refused.status_code == 400
        assert "elsewhere" not in [session.id for session in (await served.hf.sessions()).sessions]
        goes_on = await create(served, input=question, store=False)
        assert goes_on.json()["session_id"] == first["session_id"]
        assert "zebra" not in str(upstream.requests[-1].body)


# -- notes -----------------------------------------------------------------------


async def test_note_of_a_program_cannot_forge_a_response() -> None:
    """A note like those of responses is read as one, but it changes neither the id nor the status, and breaks no stream."""
    echo = {"id": "resp_forged", "status": "forged", "output": "forged", "object": "forged", "metadata": {"a": "b"}}
    note = {
        "role": "note",
        "origin": {"response": {"secret": "ab", "created_at": 1, "echo": echo}},
        "metadata": {"input": "x"},
    }
    async with gateway() as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s"})
        messages = [{"role": "user", "content": "Hi"}, note, {"role": "assistant", "content": "Hello."}]
        written = await served.http.post("/v1/sessions/s/messages", json={"messages": messages})
        place = Place("s", written.json()["data"][1]["seq"], "ab").make_id("resp")
        found = await served.http.get(f"/v1/responses/{place}")
        assert (found.status_code, "forged" in found.text) == (200, False)
        assert (found.json()["id"], found.json()["metadata"]) == (place, {"a": "b"})
        events = await served.http.get(f"/v1/responses/{place}?stream=true")
        assert (events.text.count("event: response.completed"), "forged" in events.text) == (1, False)
        assert (await served.http.get(f"/v1/responses/{place}/input_items")).json()["data"] == []
