"""The official OpenAI client against `/v1/responses` and `/v1/conversations`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import (
    count_tasks,
    count_waiting,
    gateway,
    until,
)

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 64},
}
WORDS = "one two three four"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def list_received(upstream: Any, at: int = -1) -> list[tuple[str, Any]]:
    """Return role and content of the messages that the model received."""
    return [(one["role"], one.get("content")) for one in upstream.requests[at].body["messages"]]


async def test_response_continues_by_its_id() -> None:
    """The second request has only the new message, and the model receives the conversation."""
    async with gateway([Reply(text="Hello Ada.", usage=USAGE), "Ada."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="I am Ada.", instructions="Be brief.")
        assert first.output_text == "Hello Ada."
        assert first.status == "completed"
        assert first.usage.input_tokens == 100
        assert first.usage.input_tokens_details.cached_tokens == 64
        assert first.instructions == "Be brief."
        second = await served.openai.responses.create(model="gpt-4o", input="Who am I?", previous_response_id=first.id)
        assert second.output_text == "Ada."
        assert list_received(served.upstream) == [
            ("user", "I am Ada."),
            ("assistant", "Hello Ada."),
            ("user", "Who am I?"),
        ]
        assert second.session_id == first.session_id


@pytest.mark.parametrize("mode", ["auto", "transcript", "delta"])
@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
async def test_mode_header_has_no_effect_next_to_an_id(mode: str, name: str) -> None:
    """A client sets the header once for all its requests; the id says what the messages mean."""
    async with gateway(["Hello Ada.", "Ada."]) as served:
        create = served.openai.with_options(default_headers={"X-Session-Mode": mode}).responses.create
        first = await create(model="gpt-4o", input="I am Ada.")
        ids = {"previous_response_id": first.id, "conversation": "conv_" + first.session_id.removeprefix("sess_")}
        await create(model="gpt-4o", input="Who am I?", **{name: ids[name]})
        assert list_received(served.upstream) == [
            ("user", "I am Ada."),
            ("assistant", "Hello Ada."),
            ("user", "Who am I?"),
        ]


async def test_transcript_next_to_an_id_is_refused() -> None:
    """In the body it contradicts the id: the messages are new ones."""
    async with gateway(["Hello Ada."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="I am Ada.")
        with pytest.raises(
            openai.BadRequestError, match="session_mode must be auto or delta after a thread"
        ) as refused:
            await served.openai.responses.create(
                model="gpt-4o",
                input="Who am I?",
                previous_response_id=first.id,
                extra_body={"session_mode": "transcript"},
            )
        assert refused.value.param == "session_mode"
        with pytest.raises(openai.BadRequestError, match="conversation must be the id"):
            await served.openai.responses.create(model="gpt-4o", input="Who am I?", conversation="")


async def test_stream_has_events_in_order() -> None:
    """The client's accumulator accepts the events, and its final response is the stored one."""
    async with gateway([Reply(text="One two three.", usage=USAGE)]) as served:
        kinds, numbers = [], []
        async with served.openai.responses.stream(model="gpt-4o", input="Count.") as stream:
            async for event in stream:
                kinds.append(event.type)
                numbers.append(event.sequence_number)
            final = await stream.get_final_response()
        assert numbers == list(range(len(numbers)))
        deltas = kinds.count("response.output_text.delta")
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * deltas,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert final.output_text == "One two three."
        stored = await served.openai.responses.retrieve(final.id)
        assert [item.model_dump() for item in stored.output] == [item.model_dump() for item in stored.output]
        assert stored.output_text == final.output_text
        assert stored.output[0].id == final.output[0].id


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_every_token_arrive(stream: bool) -> None:
    """Each in the event of its text, and all of them in what is complete. One chunk has none, and one has two."""

    def make_chunk(text: str, *tokens: str, reason: str | None = None) -> dict[str, Any]:
        listed = [
            {"token": one, "logprob": -len(one) / 10, "bytes": [*one.encode()], "top_logprobs": []} for one in tokens
        ]
        choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": listed} if tokens else None}
        return {"id": "x", "model": "m", "choices": [{**choice, "finish_reason": reason}]}

    pieces = [("One", "One"), (" two", " two"), (" th",), ("ree four", "ree", " four"), (" five", " five")]
    chunks = [make_chunk(*piece, reason="stop" if piece is pieces[-1] else None) for piece in pieces]
    tokens = [token for _, *listed in pieces for token in listed]
    given: Any = {"input": "Count.", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with gateway([Reply(chunks=chunks)]) as served:
        answer = await served.http.post("/v1/responses", json={**given, "stream": stream})
        assert (served.sent["logprobs"], served.sent["top_logprobs"]) == (True, 2)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    response = events[-1]["response"] if stream else answer.json()
    complete = [response["output"][0]["content"][0]]
    if stream:
        deltas = [one for one in events if one["type"] == "response.output_text.delta"]
        assert [(one["delta"], *(each["token"] for each in one["logprobs"])) for one in deltas] == pieces
        complete += [one for one in events if one["type"] == "response.output_text.done"]
        complete += [one["part"] for one in events if one["type"] == "response.content_part.done"]
        assert len(complete) == 3
    for part in complete:
        assert [(one["token"], one["logprob"]) for one in part["logprobs"]] == [(one, -len(one) / 10) for one in tokens]


@pytest.mark.parametrize("again", [False, True], ids=["continued", "forked"])
async def test_reply_with_calls_of_client_and_server_is_continued_with_all_results(again: bool) -> None:
    """The server's own result is in the prompt of the next request, which continues the session or, the second time, a fork."""

    async def find_order(number: int) -> str:
        """Find an order.

        Args:
            number: its number
        """
        return f"order {number}"

    mixed = Reply(tool_calls=[("find_order", {"number": 8}), ("get_weather", {"city": "Oslo"})])
    async with gateway([mixed, "Cold.", "Very cold."], tools=[find_order]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="Weather?", tools=[WEATHER])
        (call,) = first.output
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "1 degree"}]
        for _ in range(2 if again else 1):
            second = await served.openai.responses.create(model="gpt-4o", input=result, previous_response_id=first.id)
        assert sorted(content for role, content in list_received(served.upstream) if role == "tool") == [
            "1 degree",
            "order 8",
        ]
        assert (second.session_id == first.session_id) is not again


async def test_client_that_resends_everything_continues_the_session() -> None:
    """`store: false` with all items, as Codex sends them: the same session, nothing twice."""
    async with gateway(["Hello.", "Fine."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="Hi", store=False)
        history: list[Any] = [
            {"role": "user", "content": "Hi"},
            *[item.model_dump() for item in first.output],
            {"role": "user", "content": "How are you?"},
        ]
        second = await served.openai.responses.create(model="gpt-4o", input=history, store=False)
        assert second.session_id == first.session_id
        assert [text for _, text in await served.log(second.session_id)] == ["Hi", "Hello.", "How are you?", "Fine."]
        with pytest.raises(openai.NotFoundError):
            await served.openai.responses.retrieve(second.id)


async def test_client_that_resends_everything_after_an_older_response_branches() -> None:
    """The fork has the shared messages once."""
    async with gateway(["One.", "Two.", "Other."]) as served:
        one = await served.openai.responses.create(model="gpt-4o", input="1")
        await served.openai.responses.create(model="gpt-4o", input="2", previous_response_id=one.id)
        history: Any = [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "3"},
        ]
        await served.openai.responses.create(model="gpt-4o", input=history, previous_response_id=one.id)
        assert list_received(served.upstream) == [("user", "1"), ("assistant", "One."), ("user", "3")]


@pytest.mark.parametrize("is_last", [True, False], ids=["last response", "older response"])
async def test_idempotency_key_repeats_a_continuation_on_another_server(is_last: bool, tmp_path: Path) -> None:
    """The second attempt gets the first reply, from the session or from the fork that the first attempt made."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with (
        gateway(["One.", "Two.", "Three."], store=url) as one,
        gateway(["no"], store=url) as two,
    ):
        first = await one.openai.responses.create(model="gpt-4o", input="1")
        if not is_last:
            await one.openai.responses.create(model="gpt-4o", input="2", previous_response_id=first.id)
        answers = [
            await served.openai.responses.create(
                model="gpt-4o", input="3", previous_response_id=first.id, extra_headers={"idempotency-key": "k1"}
            )
            for served in (one, two)
        ]
        assert answers[0].id == answers[1].id
        assert answers[1].output_text == ("Two." if is_last else "Three.")
        assert len(await one.rest.sessions()) == (1 if is_last else 2)


async def test_response_whose_stream_broke_off_is_incomplete() -> None:
    """The received part is its output."""
    async with gateway([Reply(text=WORDS, cut_after=3, reset=True)]) as served:
        stream = await served.openai.responses.create(model="gpt-4o", input="Count.", stream=True)
        first = await anext(aiter(stream))
        async for event in stream:
            last = event
        assert last.type == "response.failed"
        found = await served.openai.responses.retrieve(first.response.id)
        assert (found.status, found.output_text) == ("incomplete", WORDS[: len(found.output_text)])
        assert found.output_text


@pytest.mark.parametrize("attempt", [Reply(status=500, error="down"), Reply(text=WORDS, cut_after=3, reset=True)])
async def test_failed_continuation_can_be_sent_again(attempt: Reply) -> None:
    """The same request continues the session. The message is there once, and the part of the first reply is replaced."""
    async with gateway(["One.", attempt, "Two."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="1")
        said = (("user", "1"), ("assistant", "One."), ("user", "2"))
        history: Any = [{"role": role, "content": text} for role, text in said]
        with pytest.raises(openai.APIError):
            await served.openai.responses.create(model="gpt-4o", input="2", previous_response_id=first.id)
        second = await served.openai.responses.create(model="gpt-4o", input=history, previous_response_id=first.id)
        assert second.output_text == "Two."
        assert second.session_id == first.session_id
        assert list_received(served.upstream) == [("user", "1"), ("assistant", "One."), ("user", "2")]
        assert [text for _, text in await served.log(first.session_id)] == ["1", "One.", "2", "Two."]
        assert (await served.openai.responses.retrieve(second.id)).output_text == "Two."
        (item,) = (await served.openai.responses.input_items.list(second.id)).data
        assert item.content[0].text == "2"


async def test_other_request_after_a_failed_continuation_branches() -> None:
    """Its session is a fork, and the failed request stays as it was, so it can be sent again."""
    async with gateway(["One.", Reply(status=500, error="down"), "Three.", "Two."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="1")
        with pytest.raises(openai.APIError):
            await served.openai.responses.create(model="gpt-4o", input="2", previous_response_id=first.id)
        other, second = [
            await served.openai.responses.create(model="gpt-4o", input=text, previous_response_id=first.id)
            for text in ("3", "2")
        ]
        assert list_received(served.upstream, -2) == [("user", "1"), ("assistant", "One."), ("user", "3")]
        assert other.session_id != first.session_id == second.session_id
        assert [text for _, text in await served.log(first.session_id)] == ["1", "One.", "2", "Two."]
        assert [text for _, text in await served.log(other.session_id)] == ["1", "One.", "3", "Three."]


async def test_tools_of_the_server_run_once_although_the_continuation_fails() -> None:
    """The request that is sent again goes on from their results."""
    numbers = []

    async def pay(number: int) -> str:
        """Pay.

        Args:
            number: a number
        """
        numbers.append(number)
        return "paid"

    after_payment = iter([Reply(status=500, error="down"), "Paid."])

    def answer(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return next(after_payment)
        return "One." if last["content"] == "1" else Reply(tool_calls=[("pay", {"number": 7})])

    async with gateway(answer, tools=[pay]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="1")
        with pytest.raises(openai.APIError):
            await served.openai.responses.create(model="gpt-4o", input="Pay.", previous_response_id=first.id)
        second = await served.openai.responses.create(model="gpt-4o", input="Pay.", previous_response_id=first.id)
        assert (second.output_text, second.session_id, numbers) == ("Paid.", first.session_id, [7])


async def test_retry_of_a_request_that_never_began_is_no_part_of_another_branch() -> None:
    """Two requests wait for a response. The client of one gives up, and sends it again when the other one was answered."""
    gate = Gate()

    def answer(body: dict[str, Any]) -> Reply:
        text = body["messages"][-1]["content"]
        return Reply(text=f"re: {text}", hold=gate if text == "1" else None)

    async with gateway(answer) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="1", background=True)
        (ref,) = [row["id"] for row in await served.rest.sessions()]

        async def send(text: str, count: int) -> Any:
            body = {"model": "gpt-4o", "input": text, "previous_response_id": first.id}
            return await served.http.post("/v1/responses", json=body, headers={"x-stainless-retry-count": str(count)})

        given_up = asyncio.create_task(send("2", 0))
        await served.until_waiting()
        given_up.cancel()
        await until(lambda: count_waiting(served.native) == 0)
        other = asyncio.create_task(send("3", 0))
        await served.until_waiting()
        gate.open()
        assert (await other).json()["session_id"] == ref
        again = (await send("2", 1)).json()
        assert list_received(served.upstream) == [("user", "1"), ("assistant", "re: 1"), ("user", "2")]
        assert again["session_id"] != ref


async def test_idempotency_key_with_another_previous_response_is_refused() -> None:
    """It is not the same request, although its input is."""
    async with gateway(["One.", "Two.", "Three."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="1")
        keyed: Any = {"model": "gpt-4o", "input": "go on", "extra_headers": {"idempotency-key": "k1"}}
        second = await served.openai.responses.create(**keyed, previous_response_id=first.id)
        with pytest.raises(openai.UnprocessableEntityError):
            await served.openai.responses.create(**keyed, previous_response_id=second.id)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": 7},
        {"agent": "none"},
        {"sesion_id": "x"},
        {"input": [{"type": "function_call_output", "call_id": "unknown", "output": "1"}]},
    ],
)
async def test_refused_branch_leaves_no_copy(fields: dict[str, Any]) -> None:
    """A request that is not valid is refused before the session is copied."""
    async with gateway(lambda body: "re") as served:
        first = await served.openai.responses.create(model="gpt-4o", input="1")
        await served.openai.responses.create(model="gpt-4o", input="2", previous_response_id=first.id)
        with pytest.raises(openai.APIStatusError):
            await served.openai.responses.create(
                model="gpt-4o", input="3", previous_response_id=first.id, extra_body=fields
            )
        assert len(await served.rest.sessions()) == 1


class Order(BaseModel):
    """An order."""

    number: int


async def test_parsed_response() -> None:
    """`responses.parse` gets the model that it asked for."""
    async with gateway(['{"number": 7}']) as served:
        parsed = await served.openai.responses.parse(model="gpt-4o", input="Which?", text_format=Order)
        assert parsed.output_parsed == Order(number=7)
        sent = served.upstream.requests[0].body["response_format"]
        assert sent["type"] == "json_schema"
        assert sent["json_schema"]["name"] == "Order"
        assert sent["json_schema"]["strict"] is True


async def test_custom_and_namespaced_tools_have_their_own_names() -> None:
    """The model calls plain functions; the client gets its own tools back."""
    tools: list[Any] = [
        {"type": "custom", "name": "run_code", "description": "Runs code."},
        {"type": "namespace", "name": "mail", "description": "", "tools": [{**WEATHER, "name": "send"}]},
    ]
    calls = [("run_code", {"input": "print(1)"}), ("mail__send", {"city": "Oslo"})]
    async with gateway([Reply(tool_calls=calls), "Done."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="Go", tools=tools)
        names = [tool["function"]["name"] for tool in served.upstream.requests[0].body["tools"]]
        assert names == ["run_code", "mail__send"]
        code, send = first.output
        assert (code.type, code.name, code.input) == ("custom_tool_call", "run_code", "print(1)")
        assert (send.type, send.name, send.namespace) == ("function_call", "send", "mail")
        results: list[Any] = [
            {"type": "custom_tool_call_output", "call_id": code.call_id, "output": "1"},
            {"type": "function_call_output", "call_id": send.call_id, "output": "sent"},
        ]
        await served.openai.responses.create(model="gpt-4o", input=results, previous_response_id=first.id, tools=tools)
        assert [role for role, _ in list_received(served.upstream)] == ["user", "assistant", "tool", "tool"]


# -- conversations ---------------------------------------------------------------------


async def test_one_of_several_items_of_a_message_is_deleted() -> None:
    """The other items stay. The calls of an older message are only deleted together."""
    text = {"type": "message", "role": "assistant", "content": "Wait."}
    calls = [
        {"type": "function_call", "call_id": name, "name": "get_weather", "arguments": "{}"} for name in ("a", "b")
    ]
    async with gateway() as served:
        items = served.openai.conversations.items
        newest = await served.openai.conversations.create(items=[text, *calls])
        listed = [item async for item in items.list(newest.id, order="asc")]
        await items.delete(listed[1].id, conversation_id=newest.id)
        left = [item async for item in items.list(newest.id, order="asc")]
        assert [getattr(item, "call_id", item.type) for item in left] == ["message", "b"]

        later = {"role": "user", "content": "Never mind."}
        older = await served.openai.conversations.create(items=[text, *calls, later])
        listed = [item async for item in items.list(older.id, order="asc")]
        with pytest.raises(openai.BadRequestError, match="several calls of an older message"):
            await items.delete(listed[1].id, conversation_id=older.id)
        await items.delete(listed[0].id, conversation_id=older.id)
        left = [item async for item in items.list(older.id, order="asc")]
        assert [getattr(item, "call_id", item.type) for item in left] == ["a", "b", "message"]


# -- background ------------------------------------------------------------------------


async def test_background_response_is_polled() -> None:
    """The id is there before the model has answered; later the same response is complete."""
    gate = Gate()
    async with gateway([Reply(text="One two.", hold=gate)]) as served:
        started = await served.openai.responses.create(model="gpt-4o", input="Count.", background=True)
        assert started.status == "in_progress"
        assert (await served.openai.responses.retrieve(started.id)).status == "in_progress"
        gate.open()
        async with served.openai.responses.stream(response_id=started.id) as stream:
            final = await stream.get_final_response()
        assert final.output_text == "One two."
        assert (await served.openai.responses.retrieve(started.id)).status == "completed"


async def test_refused_background_response_leaves_no_session() -> None:
    """A caller with too many of them gets a 429 before a session is made, and before one is matched."""
    gate = Gate()
    async with gateway(lambda _: Reply(text="One.", hold=gate)) as served:
        for _ in range(16):
            started = await served.openai.responses.create(model="gpt-4o", input="1", background=True)
        with pytest.raises(openai.RateLimitError):
            await served.openai.responses.create(model="gpt-4o", input="2", background=True)
        assert len(await served.rest.sessions()) == 16
        gate.open()
        async with served.openai.responses.stream(response_id=started.id) as stream:
            assert (await stream.get_final_response()).output_text == "One."
        await until(lambda: count_tasks(served.server) == 0)
        assert (await served.openai.responses.create(model="gpt-4o", input="2", background=True)).id


async def test_stream_of_a_background_response_is_resumed() -> None:
    """A client that lost its connection continues after the last event that it received, with the same numbers."""
    gate = Gate()
    async with gateway([Reply(text="One two three four.", hold=gate, hold_after=3)]) as served:
        stream = await served.openai.responses.create(model="gpt-4o", input="Count.", background=True, stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        resumed = await served.openai.responses.retrieve(
            events[0].response.id, stream=True, starting_after=events[-1].sequence_number
        )
        gate.open()
        events += [event async for event in resumed]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        words = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(words) == "One two three four."
        assert events[-1].response.output_text == "One two three four."


async def test_erased_reply_is_in_no_recorded_event() -> None:
    """After the reply was erased, the stream of its response does not contain the text that the server recorded."""
    async with gateway([Reply(text="My pin is 7461.")]) as served:
        started = await served.openai.responses.create(model="gpt-4o", input="Pin?", background=True)
        async with served.openai.responses.stream(response_id=started.id) as stream:
            assert (await stream.get_final_response()).output_text == "My pin is 7461."
        await until(lambda: count_tasks(served.server) == 0)
        (session,) = await served.rest.sessions()
        await served.rest.session(session["id"]).erase(1)
        async with served.http.stream("GET", f"/v1/responses/{started.id}", params={"stream": "true"}) as answer:
            assert "7461" not in (await answer.aread()).decode()
        assert "7461" not in str((await served.http.get(f"/v1/responses/{started.id}")).json())


async def test_background_response_is_cancelled() -> None:
    """The received part stays in the log; a second cancellation changes nothing."""
    gate = Gate()
    async with gateway([Reply(text="One two three.", hold=gate, hold_after=3)]) as served:
        started = await served.openai.responses.create(model="gpt-4o", input="Count.", background=True)
        cancelled = await served.openai.responses.cancel(started.id)
        assert cancelled.status == "cancelled"
        assert (await served.openai.responses.cancel(started.id)).status == "cancelled"
        assert (await served.openai.responses.retrieve(started.id)).status == "cancelled"


async def test_a_finished_background_response_is_not_cancelled() -> None:
    async with gateway(["One.", "Two."]) as served:
        started = await served.openai.responses.create(model="gpt-4o", input="Count.", background=True)
        [event async for event in await served.openai.responses.retrieve(started.id, stream=True)]
        (session,) = await served.rest.sessions()
        await served.rest.session(session["id"]).append({"role": "note", "origin": 1})
        assert (await served.openai.responses.cancel(started.id)).output_text == "One."
        assert (await served.openai.responses.retrieve(started.id)).status == "completed"


async def test_finished_response_is_streamed_from_the_log() -> None:
    """Without a recording, the events are made from the log, and the client's accumulator accepts them."""
    calls = [("get_weather", {"city": "Oslo"})]
    async with gateway([Reply(text="Wait.", tool_calls=calls)]) as served:
        sent = await served.openai.responses.create(model="gpt-4o", input="Weather?", tools=[WEATHER])
        async with served.openai.responses.stream(response_id=sent.id) as stream:
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert final.output_text == "Wait."
        resumed = await served.openai.responses.retrieve(sent.id, stream=True, starting_after=7)
        events = [event async for event in resumed]
        assert [(event.type, event.sequence_number) for event in events] == [("response.completed", 8)]


async def test_failed_model_fails_the_response() -> None:
    """A background response whose model fails says so; a whole one has the status of the error."""
    failing = Reply(status=429, error="slow down", headers={"retry-after": "0"})
    async with gateway(lambda _: failing) as served:
        with pytest.raises(openai.RateLimitError) as caught:
            await served.openai.responses.create(model="gpt-4o", input="Hi")
        assert caught.value.code == "rate_limit_exceeded"
        started = await served.openai.responses.create(model="gpt-4o", input="Hi", background=True)
        events = [event async for event in await served.openai.responses.retrieve(started.id, stream=True)]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.code == "rate_limit_exceeded"
        assert (await served.openai.responses.retrieve(started.id)).status == "failed"


async def test_disabled_truncation_sends_the_whole_conversation_or_fails() -> None:
    """As long as the conversation fits, the prompt has all of it; then the request is rejected, and `auto` goes on."""
    async with gateway(lambda _: "Noted, thank you.", "context: {strategy: digest, budget: 700}") as served:
        conversation = await served.openai.conversations.create()
        given: dict[str, Any] = {"model": "gpt-4o", "conversation": conversation.id}
        code = None
        for said in range(100):
            text = f"Fact {said}: " + "the parcel is late. " * 10
            try:
                await served.openai.responses.create(input=text, truncation="disabled", **given)
            except openai.BadRequestError as exc:
                code = exc.code
                break
            assert len(served.upstream.requests[-1].body["messages"]) == 2 * said + 1
        assert (code, 3 < said < 20) == ("context_length_exceeded", True)
        after = await served.openai.responses.create(input="And now?", **given)
        assert after.status == "completed"
        assert "Fact 1:" not in [str(one["content"])[:7] for one in served.upstream.requests[-1].body["messages"]]


async def test_misspelt_fields_are_refused() -> None:
    """A misspelt `previous_response_id` would lose the conversation."""
    async with gateway(["One."]) as served:
        with pytest.raises(openai.BadRequestError, match="did you mean 'previous_response_id'"):
            await served.openai.responses.create(
                model="gpt-4o", input="Hi", extra_body={"previuos_response_id": "resp_1"}
            )


# -- references to items ------------------------------------------------------------------


def refer_to(item: Any) -> Any:
    return {"type": "item_reference", "id": item.id}


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
async def test_referenced_item_of_another_session_is_added(name: str) -> None:
    """Next to an id, an item that the session has already is left out, and one of another session of the user is not."""
    async with gateway(lambda body: f"re: {body['messages'][-1]['content']}") as served:
        responses = served.openai.responses
        other = await responses.create(model="gpt-4o", input="A zebra.")
        (question,) = (await responses.input_items.list(other.id)).data
        first = await responses.create(model="gpt-4o", input="I am Ada.")
        ids = {"previous_response_id": first.id, "conversation": "conv_" + first.session_id.removeprefix("sess_")}
        own = (await responses.input_items.list(first.id)).data
        sent = [*map(refer_to, [*own, *first.output, question, *other.output]), {"role": "user", "content": "And?"}]
        await responses.create(model="gpt-4o", input=sent, **{name: ids[name]})
        texts = [text for _, text in list_received(served.upstream)]
        assert texts == ["I am Ada.", "re: I am Ada.", "A zebra.", "re: A zebra.", "And?"]


async def test_referenced_items_of_a_forks_parent_are_known() -> None:
    """A fork has copies of them. What the parent got later is added."""
    async with gateway(lambda body: f"re: {body['messages'][-1]['content']}") as served:
        responses = served.openai.responses
        first = await responses.create(model="gpt-4o", input="one")
        later = await responses.create(model="gpt-4o", input="two", previous_response_id=first.id)
        fork = await responses.create(model="gpt-4o", input="three", previous_response_id=first.id)
        assert fork.session_id != later.session_id == first.session_id
        sent = [*map(refer_to, [*first.output, *fork.output, *later.output]), {"role": "user", "content": "four"}]
        await responses.create(model="gpt-4o", input=sent, previous_response_id=fork.id)
        texts = [text for _, text in list_received(served.upstream)]
        assert texts == ["one", "re: one", "three", "re: three", "re: two", "four"]
        sent = [*map(refer_to, [*first.output, *later.output]), {"role": "user", "content": "five"}]
        await responses.create(model="gpt-4o", input=sent, previous_response_id=first.id)
        assert [text for _, text in list_received(served.upstream)] == ["one", "re: one", "re: two", "five"]


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("whose", ["none", "another user", "deleted"])
async def test_reference_to_no_item_of_the_user_is_refused(name: str, whose: str) -> None:
    """It is not dropped silently, and nothing is stored."""
    async with gateway(lambda _: "ok") as served:
        responses = served.openai.responses
        first = await responses.create(model="gpt-4o", input="I am Ada.", user="ada")
        conversation = "conv_" + first.session_id.removeprefix("sess_")
        other = await responses.create(model="gpt-4o", input="A zebra.", user="bob" if whose != "deleted" else "ada")
        item = {"id": "msg_1"} if whose == "none" else {"id": other.output[0].id}
        if whose == "deleted":
            await responses.delete(other.id, extra_query={"user_id": "ada"})
        ids = {"previous_response_id": first.id, "conversation": conversation}
        sent: Any = [{"type": "item_reference", **item}, {"role": "user", "content": "And?"}]
        before, calls = await served.log(first.session_id, "ada"), len(served.upstream.requests)
        with pytest.raises(openai.BadRequestError, match=r"Item with id .* not found"):
            await responses.create(model="gpt-4o", input=sent, user="ada", **{name: ids[name]})
        assert (await served.log(first.session_id, "ada"), len(served.upstream.requests)) == (before, calls)
