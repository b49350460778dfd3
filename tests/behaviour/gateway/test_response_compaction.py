"""`/v1/responses/compact` and the items that it returns, with the official client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, bearer, gateway, user

PAGE = "Flight LH123 to Oslo costs 200 euros and leaves at 06:15. " * 12
TOOL: Any = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}


def to_input(items: Any) -> list[Any]:
    """Return output items as a client sends them back."""
    return [item.model_dump(mode="json", exclude_unset=True, warnings=False) for item in items]


async def talk(served: Served, turns: int, **fields: Any) -> tuple[list[Any], Any]:
    """Talk without stored responses, resending everything; return the items, and the last response."""
    items: list[Any] = []
    response = None
    for at in range(turns):
        items.append(user(f"Question {at}?"))
        response = await served.openai.responses.create(model="gpt-4o", input=items, store=False, **fields)
        items += to_input(response.output)
    return items, response


async def list_compactions(served: Served, session_id: str) -> list[Any]:
    """Return the compactions of a session."""
    found: list[Any] = (await served.http.get(f"/v1/sessions/{session_id}/compactions")).json()["data"]
    return found


REPLIES = [f"Reply {at}. {PAGE}" for at in range(20)]


async def test_compacted_conversation_continues_its_session() -> None:
    """The output is every user message and one item; a request with it, and the ones after it, continue the session."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 8)
        done = await served.openai.responses.compact(model="gpt-4o", input=items)
        assert done.object == "response.compaction"
        assert [one.type for one in done.output] == ["message"] * 8 + ["compaction"]
        texts = [one["content"][0]["text"] for one in to_input(done.output)[:-1]]
        assert texts == [f"Question {at}?" for at in range(8)]
        (made,) = await list_compactions(served, last.session_id)
        assert made["status"] == "live"
        assert done.compaction_id == made["id"]
        assert done.usage.total_tokens == 0  # no model wrote it
        items = to_input(done.output)
        for at in range(3):
            items.append(user(f"More {at}?"))
            response = await served.openai.responses.create(model="gpt-4o", input=items, store=False)
            items += to_input(response.output)
            assert response.session_id == last.session_id
        assert len(await served.log(last.session_id)) == 2 * 11
        sent = served.upstream.requests[-1].body["messages"]
        assert len(sent) < 2 * 11
        assert any("Summary of messages" in str(one["content"]) for one in sent)
        assert sent[-1]["content"] == "More 2?"


async def test_items_before_the_newest_item_may_be_left_out() -> None:
    """A client may send the item alone, with what follows."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 6)
        done = await served.openai.responses.compact(model="gpt-4o", input=items)
        response = await served.openai.responses.create(
            model="gpt-4o", input=[*to_input(done.output)[-1:], user("More?")], store=False
        )
        assert response.session_id == last.session_id
        assert [text for _, text in await served.log(last.session_id)][-2] == "More?"


async def test_stored_conversation_is_compacted_by_its_response() -> None:
    """`previous_response_id` needs no items; a request after the response keeps the whole log."""
    async with gateway(list(REPLIES)) as served:
        last: Any = None
        for at in range(6):
            last = await served.openai.responses.create(
                model="gpt-4o", input=f"Question {at}?", previous_response_id=last and last.id
            )
        done = await served.openai.responses.compact(model="gpt-4o", previous_response_id=last.id)
        assert [one.type for one in done.output] == ["message"] * 6 + ["compaction"]
        again = await served.openai.responses.create(
            model="gpt-4o", input=[*to_input(done.output)[-1:], user("More?")], previous_response_id=last.id
        )
        assert again.session_id == last.session_id
        assert len(await served.log(last.session_id)) == 14


async def test_compaction_is_undone_like_every_other() -> None:
    """After the summary is dropped, the prompt has the whole conversation again."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 6)
        done = await served.openai.responses.compact(model="gpt-4o", input=items)
        path = f"/v1/sessions/{last.session_id}/compactions/{done.compaction_id}"
        assert (await served.http.delete(path)).status_code == 200
        await served.openai.responses.create(model="gpt-4o", input=[*to_input(done.output), user("More?")], store=False)
        assert len(served.upstream.requests[-1].body["messages"]) == 13


async def test_another_continuation_of_an_item_is_a_fork() -> None:
    """Two clients that go on from the same item do not see each other's messages."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 4)
        output = to_input((await served.openai.responses.compact(model="gpt-4o", input=items)).output)
        create = served.openai.responses.create
        one = await create(model="gpt-4o", input=[*output, user("One way?")], store=False)
        two = await create(model="gpt-4o", input=[*output, user("Another way?")], store=False)
        ids = [response.session_id for response in (one, two)]
        assert ids[0] == last.session_id != ids[1]
        assert "One way?" not in str(served.upstream.requests[-1].body["messages"])
        assert [text for _, text in await served.log(ids[1])][-2] == "Another way?"


@pytest.mark.parametrize("by", ["key", "key on another server", "retry count"])
async def test_retry_with_an_item_gets_the_first_reply(by: str, tmp_path: Path) -> None:
    """It is no other continuation of the item: the model is not called again, and no fork is made."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with gateway(list(REPLIES), store=url) as one, gateway(["no"], store=url) as two:
        items, last = await talk(one, 6)
        done = await one.openai.responses.compact(model="gpt-4o", input=items)
        items = [*to_input(done.output), user("More?")]
        answers = []
        for at, served in enumerate((one, two if by == "key on another server" else one)):
            headers = {"x-stainless-retry-count": str(at)} if by == "retry count" else {"idempotency-key": "k"}
            body = {"model": "gpt-4o", "input": items}
            answers.append((await served.http.post("/v1/responses", json=body, headers=headers)).json())
        assert answers[0]["id"] == answers[1]["id"]
        assert answers[1]["output"][0]["content"][0]["text"] == REPLIES[6]
        assert len(one.upstream.requests) == 7
        assert [row["id"] for row in await one.rest.sessions()] == [last.session_id]


async def test_item_stands_for_its_messages_in_another_session() -> None:
    """If the request names another session, this session gets the user's messages and the text of the item."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 6)
        done = await served.openai.responses.compact(model="gpt-4o", input=items)
        more = {"extra_body": {"session_id": "other"}}
        response = await served.openai.responses.create(
            model="gpt-4o", input=[*to_input(done.output), user("More?")], store=False, **more
        )
        assert response.session_id == "other" != last.session_id
        sent = [one["content"] for one in served.upstream.requests[-1].body["messages"]]
        assert sent[:6] == [f"Question {at}?" for at in range(6)]
        assert "LH123" in sent[6]
        assert sent[7:] == ["More?"]


@pytest.mark.parametrize("deleted", ["sessions/{}", "users/default"], ids=["session", "user"])
async def test_item_is_deleted_with_its_session(deleted: str) -> None:
    """A session of the same name that is created later has no such item either."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 6)
        done = await served.openai.responses.compact(model="gpt-4o", input=items)
        answer = await served.http.delete(f"/v1/{deleted.format(last.session_id)}")
        assert answer.status_code == 200
        request: Any = {"model": "gpt-4o", "input": [*to_input(done.output), user("More?")], "store": False}
        for _ in range(2):
            with pytest.raises(openai.BadRequestError) as refused:
                await served.openai.responses.create(**request)
            assert refused.value.code == "invalid_encrypted_content"
            await served.http.post("/v1/sessions", json={"id": last.session_id})
        assert len(served.upstream.requests) == 6


async def test_item_of_another_tenant_or_user_is_unknown() -> None:
    """Their keys get the same answer as for an item that never existed."""
    async with gateway(list(REPLIES), "auth: {required: true}") as served:
        ada, bob, other = [
            bearer(await served.create_key(role="write", **fields))
            for fields in ({"user_id": "ada"}, {"user_id": "bob"}, {"user_id": "ada", "tenant": "t2"})
        ]
        fields: Any = {"extra_headers": ada}
        items, _ = await talk(served, 4, **fields)
        done = await served.openai.responses.compact(model="gpt-4o", input=items, **fields)
        request: Any = {"model": "gpt-4o", "input": [*to_input(done.output), user("More?")], "store": False}
        unknown = {**to_input(done.output)[-1], "encrypted_content": "hfcmp_" + "0" * 32 + "_1z" + "0" * 32}
        answers = []
        for headers, given in ((bob, request), (other, request), (ada, {**request, "input": [unknown, user("More?")]})):
            with pytest.raises(openai.BadRequestError) as refused:
                await served.openai.responses.create(**given, extra_headers=headers)
            answers.append(refused.value.code)
        assert answers == ["invalid_encrypted_content"] * 3
        assert len(served.upstream.requests) == 4
        assert (await served.openai.responses.create(**request, **fields)).output_text == REPLIES[4]


async def test_compaction_adds_no_message_to_the_session() -> None:
    """It is kept in a note. A reference has 128 random bits."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 6)
        tokens = set()
        for _ in range(2):
            done = await served.openai.responses.compact(model="gpt-4o", input=items)
            tokens.add(to_input(done.output)[-1]["encrypted_content"].rpartition("z")[2])
        assert {len(token) for token in tokens} == {32}
        assert len(tokens) == 2
        assert len(await served.log(last.session_id)) == 12
        assert (await served.http.get(f"/v1/sessions/{last.session_id}")).json()["message_count"] == 12


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
async def test_request_that_failed_after_its_compaction_can_be_sent_again(store: bool) -> None:
    """The messages are stored once, and the input of the response is complete."""
    down = Reply(status=500, error="down")
    async with gateway([*REPLIES[:6], down, "Fine."]) as served:
        items, last = await talk(served, 6)
        request: Any = {"model": "gpt-4o", "input": [*items, user("More?")], "store": store}
        fields: Any = {"context_management": above(500)}
        with pytest.raises(openai.APIStatusError):
            await served.openai.responses.create(**request, **fields)
        response = await served.openai.responses.create(**request, **fields)
        assert response.session_id == last.session_id
        assert [text for _, text in await served.log(last.session_id)][-2:] == ["More?", "Fine."]
        assert len(await served.log(last.session_id)) == 14
        if store:
            listed = [item async for item in served.openai.responses.input_items.list(response.id, order="asc")]
            assert [one["content"][0]["text"] for one in to_input(listed)] == ["More?"]


async def test_changed_and_foreign_items_are_unknown() -> None:
    """A changed item, and one of another user, are refused by name, and nothing is stored."""
    async with gateway(list(REPLIES)) as served:
        items, _ = await talk(served, 4, user="ada")
        done = await served.openai.responses.compact(model="gpt-4o", input=items, extra_body={"user_id": "ada"})
        output, before = to_input(done.output), len(served.upstream.requests)
        token = output[-1]["encrypted_content"]
        create, sessions = served.openai.responses.create, (await served.http.get("/v1/sessions")).json()["data"]
        for content, who in ((token[:-1] + ("A" if token[-1] != "A" else "B"), "ada"), (token, "eve")):
            sent = [*output[:-1], {**output[-1], "encrypted_content": content}, user("More?")]
            with pytest.raises(openai.BadRequestError) as refused:
                await create(model="gpt-4o", input=sent, user=who)
            assert refused.value.code == "invalid_encrypted_content"
            assert refused.value.param == "input[4].encrypted_content"
        assert len(served.upstream.requests) == before
        assert (await served.http.get("/v1/sessions")).json()["data"] == sessions


async def test_item_of_openai_is_reported_and_not_dropped_in_silence() -> None:
    """An item that OpenAI made is kept in the log, and a warning says that the model cannot read it."""
    async with gateway(list(REPLIES)) as served:
        foreign = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAA"}
        response = await served.openai.responses.create(model="gpt-4o", input=[foreign, user("More?")])
        (warning,) = response.to_dict()["session"]["warnings"]
        assert warning["code"] == "compaction_not_read"
        assert [one["content"] for one in served.upstream.requests[-1].body["messages"]] == ["More?"]
        listed = [item async for item in served.openai.responses.input_items.list(response.id, order="asc")]
        assert "compaction" in [item.type for item in listed]


async def test_tool_calls_after_an_item_are_matched() -> None:
    """An agent's loop with tools continues the session after the conversation was compacted."""
    async with gateway([*REPLIES[:4], Reply(tool_calls=[("read", {})]), "Done.", "End."]) as served:
        items, last = await talk(served, 4)
        items = to_input((await served.openai.responses.compact(model="gpt-4o", input=items)).output)
        items.append(user("Read it."))
        for _ in range(3):
            response = await served.openai.responses.create(model="gpt-4o", input=items, store=False, tools=[TOOL])
            assert response.session_id == last.session_id
            items += to_input(response.output)
            calls = [one for one in response.output if one.type == "function_call"]
            items += [{"type": "function_call_output", "call_id": one.call_id, "output": PAGE} for one in calls]
            items += [] if calls else [user("And?")]
        roles = [role for role, _ in await served.log(last.session_id)]
        assert roles[8:] == ["user", "assistant", "tool", "assistant", "user", "assistant"]


# -- on create ---------------------------------------------------------------------


def above(tokens: int) -> list[Any]:
    """Return the field `context_management` that compacts a prompt of more tokens."""
    return [{"type": "compaction", "compact_threshold": tokens}]


async def stream_response(served: Served, **fields: Any) -> tuple[Any, list[Any]]:
    """Create a response as a stream; return it with all events."""
    events = []
    async with served.openai.responses.stream(model="gpt-4o", **fields) as stream:
        async for event in stream:
            events.append(event)
        return await stream.get_final_response(), events


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_threshold_is_exact(streamed: bool) -> None:
    """A prompt of as many tokens as the threshold is sent whole; with one token more it is compacted, and the item comes first."""
    for less in (0, 1):
        async with gateway(list(REPLIES)) as served:
            items, _ = await talk(served, 6)
            items.append(user("More?"))
            counted = await served.openai.responses.input_tokens.count(model="gpt-4o", input=items)
            fields: Any = {"input": items, "store": False, "context_management": above(counted.input_tokens - less)}
            if streamed:
                response, _ = await stream_response(served, **fields)
            else:
                response = await served.openai.responses.create(model="gpt-4o", **fields)
            kinds = [one.type for one in response.output]
            assert kinds == ["compaction", "message"][1 - less :]
            assert len(served.upstream.requests[-1].body["messages"]) < 13 if less else True
            assert response.session["working_set"]["total_tokens"] <= counted.input_tokens


async def test_events_of_a_compaction() -> None:
    """The item is added, compacted and done before the text, and the numbers have no gap."""
    async with gateway(list(REPLIES)) as served:
        items, _ = await talk(served, 6)
        final, events = await stream_response(served, input=[*items, user("More?")], context_management=above(500))
        kinds = [event.type for event in events]
        assert kinds[:6] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.compaction.compacting",
            "response.output_item.done",
            "response.output_item.added",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[3].item_id == events[2].item.id == events[4].item.id == final.output[0].id
        stored = await served.openai.responses.retrieve(final.id)
        assert [one.type for one in stored.output] == ["compaction", "message"]
        assert stored.output[0] == final.output[0]
        again = [event.type async for event in await served.openai.responses.retrieve(final.id, stream=True)]
        assert again[2:5] == ["response.output_item.added", "response.output_item.done", "response.output_item.added"]


async def test_compacted_stream_continues_its_session() -> None:
    """A stateless client that keeps only what follows the item goes on for many turns in one session, with short prompts."""
    async with gateway(list(REPLIES)) as served:
        items: list[Any] = []
        ids, compacted = set(), 0
        for at in range(16):
            items.append(user(f"Question {at}?"))
            response = await served.openai.responses.create(
                model="gpt-4o", input=items, store=False, context_management=above(1200)
            )
            ids.add(response.session_id)
            if response.output[0].type == "compaction":
                compacted, items = compacted + 1, []
            items += to_input(response.output)
        assert len(ids) == 1
        assert 2 <= compacted <= 8
        assert len(await served.log(ids.pop())) == 32
        assert served.upstream.requests[-1].body["messages"][-1]["content"] == "Question 15?"


async def test_prefix_stays_the_same_between_compactions() -> None:
    """After a compaction, each prompt begins with the previous one until the next compaction."""
    async with gateway(list(REPLIES)) as served:
        fields: Any = {"extra_body": {"recall": "off"}}
        items, _ = await talk(served, 6, **fields)
        count = served.openai.responses.input_tokens.count
        limit = (await count(model="gpt-4o", input=[*items, user("More?")], **fields)).input_tokens - 1
        breaks = []
        for at in range(4):
            items.append(user(f"More {at}?"))
            response = await served.openai.responses.create(
                model="gpt-4o", input=items, store=False, context_management=above(limit), **fields
            )
            items += to_input(response.output)
            before, after = (one.body["messages"] for one in served.upstream.requests[-2:])
            breaks.append(after[: len(before)] != before)
        assert breaks == [True, False, False, False]


async def test_trigger_compacts_now_and_no_model_answers() -> None:
    """With `compaction_trigger` as the last item, the response is the compaction alone."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 6)
        before = len(served.upstream.requests)
        trigger: Any = {"type": "compaction_trigger"}
        final, _ = await stream_response(served, input=[*items, trigger], store=False)
        assert [one.type for one in final.output] == ["compaction"]
        assert final.status == "completed"
        assert len(served.upstream.requests) == before
        response = await served.openai.responses.create(
            model="gpt-4o", input=[*to_input(final.output), user("More?")], store=False
        )
        assert response.session_id == last.session_id
        with pytest.raises(openai.BadRequestError) as refused:
            await served.openai.responses.create(model="gpt-4o", input=[trigger, user("More?")])
        assert refused.value.param == "input[0]"


@pytest.mark.parametrize(
    "given",
    [
        {"type": "compaction"},
        [{"type": "truncation"}],
        [{"type": "compaction", "compact_threshold": 0}],
        [{"type": "compaction", "compact_threshold": "many"}],
        [{"type": "compaction", "threshold": 5}],
        [{"type": "compaction"}, {"type": "compaction"}],
    ],
)
async def test_wrong_context_management_is_named(given: Any) -> None:
    """The error names the field, and nothing is stored."""
    async with gateway([]) as served:
        body = {"model": "gpt-4o", "input": "Hi", "context_management": given}
        answer = await served.http.post("/v1/responses", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("context_management")
        assert (await served.http.get("/v1/sessions")).json()["data"] == []


async def test_model_writes_the_summary_of_a_session_that_has_one() -> None:
    """With `summary_buffer`, the agent's model writes the summary, and `usage` counts its tokens."""
    config = "context: {strategy: summary_buffer, budget: 100000}\n"
    summary = Reply(
        text="The user asked about flight LH123 to Oslo for 200 euros.",
        usage={"prompt_tokens": 700, "completion_tokens": 20, "total_tokens": 720},
    )
    async with gateway([*REPLIES[:6], summary, "Fine."], config) as served:
        items, last = await talk(served, 6)
        done = await served.openai.responses.compact(model="gpt-4o", input=items)
        assert (done.usage.input_tokens, done.usage.output_tokens) == (700, 20)
        (made,) = await list_compactions(served, last.session_id)
        assert "LH123" in made["text"]
    async with gateway([*REPLIES[:6], summary], config) as served:
        items, _ = await talk(served, 6)
        trigger: Any = {"type": "compaction_trigger"}
        alone = await served.openai.responses.create(model="gpt-4o", input=[*items, trigger], store=False)
        assert (alone.usage.input_tokens, alone.usage.output_tokens) == (700, 20)


async def test_tokens_of_a_compacted_conversation_are_counted() -> None:
    """`input_tokens` with an item counts the prompt of its session, and stores nothing."""
    async with gateway(list(REPLIES)) as served:
        fields: Any = {"model": "gpt-4o", "extra_body": {"recall": "off"}}
        items, last = await talk(served, 8, extra_body={"recall": "off"})
        output = to_input((await served.openai.responses.compact(**{**fields, "input": items})).output)
        request = {**fields, "input": [*output, user("More?")]}
        before = (await served.http.get("/v1/sessions")).json()["data"]
        counted = await served.openai.responses.input_tokens.count(**request)
        assert (await served.http.get("/v1/sessions")).json()["data"] == before
        response = await served.openai.responses.create(**request)
        assert response.session_id == last.session_id
        assert counted.input_tokens == response.session["working_set"]["total_tokens"] < 1000


# -- several servers, and sessions that changed ----------------------------------------


@pytest.mark.parametrize("store", ["file", "postgres"])
async def test_item_continues_on_another_server(store: str) -> None:
    """A second server on the same database continues the session, also after a restart; one with another database does not know the item."""
    async with gateway(list(REPLIES), store=store) as one, gateway(list(REPLIES), store=one.store) as two:
        items, last = await talk(one, 6)
        done = await one.openai.responses.compact(model="gpt-4o", input=items)
        request: Any = {"model": "gpt-4o", "input": [*to_input(done.output), user("More?")], "store": False}
        response = await two.openai.responses.create(**request)
        assert response.session_id == last.session_id
        assert len(two.upstream.requests[-1].body["messages"]) < 13
        assert len(await one.log(last.session_id)) == 14
        request["input"] += [*to_input(response.output), user("And?")]
        async with gateway(list(REPLIES), store=one.store) as again:
            assert (await again.openai.responses.create(**request)).session_id == last.session_id
            assert len(await again.log(last.session_id)) == 16
    async with gateway(list(REPLIES)) as other:
        with pytest.raises(openai.BadRequestError) as refused:
            await other.openai.responses.create(**request)
        assert refused.value.code == "invalid_encrypted_content"


async def test_rewound_session_is_not_continued() -> None:
    """If the session was rewound to a place before the end of the item, the request goes on from the item's text in a new session."""
    async with gateway(list(REPLIES)) as served:
        items, last = await talk(served, 6)
        done = await served.openai.responses.compact(model="gpt-4o", input=items)
        rewound = await served.http.post(f"/v1/sessions/{last.session_id}/rewind", json={"at_turn": 2})
        assert rewound.status_code == 200
        log = await served.log(last.session_id)
        response = await served.openai.responses.create(
            model="gpt-4o", input=[*to_input(done.output), user("More?")], store=False
        )
        assert response.session_id != last.session_id
        assert await served.log(last.session_id) == log
        assert "Question 5?" in str(served.upstream.requests[-1].body["messages"])


async def test_item_has_no_erased_text() -> None:
    """After a message of the conversation was erased, another session does not get its text from the item, and a summary of it neither.

    What was only rewound stays in the item.
    """
    async with gateway(list(REPLIES)) as served:
        items, _ = await talk(served, 5)
        items += [user("My code is zebra7788."), {"role": "assistant", "content": "I see."}, user("More?")]
        response = await served.openai.responses.create(model="gpt-4o", input=items, context_management=above(300))
        item = to_input(response.output)[0]

        async def read_texts(name: str) -> str:
            sent: Any = [item, user("And now?")]
            await served.openai.responses.create(model="gpt-4o", input=sent, extra_body={"session_id": name})
            return str(await served.log(name))

        assert "zebra7788" in await read_texts("before")
        entries = await served.entries(response.session_id)
        await served.rest.session(response.session_id).rewind(0)
        assert "zebra7788" in await read_texts("rewound")
        (entry,) = [one for one in entries if "zebra" in one["content"]]
        await served.http.delete(f"/v1/sessions/{response.session_id}/messages/{entry['seq']}")
        after = await read_texts("after")
        assert ("zebra7788" in after, "LH123" in after) == (False, True)
        await served.http.delete(
            f"/v1/sessions/{response.session_id}/messages/{entries[1]['seq']}"
        )  # the summary is erased, too
        with pytest.raises(openai.BadRequestError) as refused:
            await read_texts("later")
        assert refused.value.code == "invalid_encrypted_content"
        assert "was erased" in refused.value.message


async def test_failed_summary_is_not_tried_with_each_request() -> None:
    """If the model that writes summaries fails, the requests are answered, and the next one does not ask it again at once."""
    config = "context: {strategy: summary_buffer, budget: 100000}\n"
    refusal = Reply(text="I'm sorry, I cannot help with that.")
    async with gateway([*REPLIES[:6], refusal, "One.", "Two."], config) as served:
        items, last = await talk(served, 6)
        for text in ("One.", "Two."):
            items.append(user("More?"))
            response = await served.openai.responses.create(
                model="gpt-4o", input=items, store=False, context_management=above(300)
            )
            items += to_input(response.output)
            assert response.output_text == text
            assert [one.type for one in response.output] == ["message"]
        assert len(served.upstream.requests) == 9
        assert [one["status"] for one in await list_compactions(served, last.session_id)] == ["failed"]


async def test_item_next_to_a_reference_is_not_lost() -> None:
    """The item names the session, and the referenced item of another conversation is added to it."""
    async with gateway(lambda body: f"Reply to {body['messages'][-1]['content']}") as served:
        first = await served.openai.responses.create(model="gpt-4o", input="I am Ada.")
        compacted = await served.openai.responses.compact(model="gpt-4o", previous_response_id=first.id)
        other = await served.openai.responses.create(model="gpt-4o", input="A zebra.")
        item = compacted.output[-1].model_dump(exclude_none=True)
        reference = {"type": "item_reference", "id": other.output[0].id}
        sent = [item, reference, {"role": "user", "content": "And now?"}]
        reply = await served.openai.responses.create(model="gpt-4o", input=sent, store=False)
        assert reply.session_id == first.session_id
        texts = [message["content"] for message in served.upstream.requests[-1].body["messages"]]
        assert (texts[0], texts[-1]) == ("I am Ada.", "And now?")
        assert "Reply to A zebra." in texts
