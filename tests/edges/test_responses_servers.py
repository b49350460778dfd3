"""Two servers with one store answer requests of the Responses and Conversations APIs, are killed, and share conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.edges.server import TOOL_SERVER, Process, config_text
from tests.stores.servers import place

LEASE = "1500"
"""Milliseconds after which another server may continue a session whose server was killed."""
TURNS = 5
WORDS = "one two three four five six"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store."""
    with place(request.param, tmp_path) as found:
        yield found


@asynccontextmanager
async def serve_twice(url: str, upstream: ScriptedUpstream, folder: Path) -> AsyncIterator[list[tuple[Process, Any]]]:
    """Run two servers with one store; each with a client that does not retry."""
    config = folder / "holdfast.yaml"
    config.write_text(config_text(upstream.url), encoding="utf-8")
    env = {"TOOL_SERVER_LEASE": LEASE, "TOOL_SERVER_COUNTS": str(folder / "counts.db")}

    def start() -> Process:
        return Process(url, config=config, env=env, program=TOOL_SERVER)

    with start() as first, start() as second:
        clients = [AsyncOpenAI(base_url=f"{one.url}/v1", api_key="any", max_retries=0) for one in (first, second)]
        try:
            yield list(zip((first, second), clients, strict=True))
        finally:
            for client in clients:
                await client.close()


async def wait_for_end(client: Any, response_id: str) -> Any:
    """Return a response as soon as it is no longer in progress."""
    async with client.responses.stream(response_id=response_id) as stream:
        async for _ in stream:
            pass
    return await client.responses.retrieve(response_id)


async def test_response_is_found_by_the_other_server_at_once(url: str, tmp_path: Path) -> None:
    """The other server finds the id when the first event arrives, and continues after the reply."""
    gate = Gate()
    replies: list[Any] = [Reply(text=WORDS, hold=gate, hold_after=2), "Again."]
    async with ScriptedUpstream(replies) as upstream, serve_twice(url, upstream, tmp_path) as ((_, one), (_, two)):
        stream = await one.responses.create(model="gpt-4o", input="Count.", stream=True)
        created = await anext(aiter(stream))
        found = await two.responses.retrieve(created.response.id)
        assert (found.id, found.status) == (created.response.id, "in_progress")
        (item,) = (await two.responses.input_items.list(found.id)).data
        assert item.content[0].text == "Count."
        gate.open()
        events = [event async for event in stream]
        assert events[-1].type == "response.completed"
        assert (await two.responses.retrieve(found.id)).output_text == WORDS
        again = await two.responses.create(model="gpt-4o", input="Again?", previous_response_id=found.id)
        assert (await one.responses.retrieve(again.id)).output_text == "Again."
        texts = [message["content"] for message in upstream.requests[1].body["messages"]]
        assert texts == ["Count.", WORDS, "Again?"]


@pytest.mark.parametrize("received", [1, 2, 4, 6])
async def test_killed_server_leaves_every_reported_response(url: str, tmp_path: Path, received: int) -> None:
    """After kill -9 between two events, the other server finds the response with its input, and goes on after it."""
    gate = Gate()
    replies: list[Any] = [Reply(text=WORDS, hold=gate, hold_after=max(received - 2, 2)), "I go on."]
    async with (
        ScriptedUpstream(replies) as upstream,
        serve_twice(url, upstream, tmp_path) as ((killed, one), (_, two)),
    ):
        stream = await one.responses.create(model="gpt-4o", input="Count.", stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if len(events) == received:
                break
        await asyncio.to_thread(killed.kill)
        with suppress(openai.APIError):
            await stream.close()
        gate.open()
        response_id = events[0].response.id
        ended = await wait_for_end(two, response_id)
        assert ended.status in ("incomplete", "failed")
        (item,) = (await two.responses.input_items.list(response_id)).data
        assert item.content[0].text == "Count."
        again = await two.responses.create(model="gpt-4o", input="Go on.", previous_response_id=response_id)
        assert again.output_text == "I go on."
        texts = [message["content"] for message in upstream.requests[-1].body["messages"]]
        assert (texts[0], texts[-1]) == ("Count.", "Go on.")


async def test_two_writers_of_a_conversation(url: str, tmp_path: Path) -> None:
    """Turns through two servers do not mix: each input is followed by its own reply."""
    async with (
        ScriptedUpstream(lambda body: f"Reply to {body['messages'][-1]['content']}") as upstream,
        serve_twice(url, upstream, tmp_path) as servers,
    ):
        clients = [client for _, client in servers]
        conversation = await clients[0].conversations.create()

        async def write(writer: int) -> list[Any]:
            return [
                await clients[writer].responses.create(
                    model="gpt-4o", input=f"{writer}.{at}", conversation=conversation.id
                )
                for at in range(TURNS)
            ]

        first, second = await asyncio.gather(write(0), write(1))
        for at in range(TURNS):
            assert (first[at].output_text, second[at].output_text) == (f"Reply to 0.{at}", f"Reply to 1.{at}")
        items = [item async for item in clients[1].conversations.items.list(conversation.id, order="asc", limit=7)]
        texts = [item.content[0].text for item in items]
        assert texts[1::2] == [f"Reply to {text}" for text in texts[::2]]
        assert sorted(texts[::2]) == [f"{writer}.{at}" for writer in (0, 1) for at in range(TURNS)]
        for response in (*first, *second):
            assert (await clients[0].responses.retrieve(response.id)).output_text == response.output_text


async def test_two_requests_after_one_response(url: str, tmp_path: Path) -> None:
    """One continues the session, the other one gets a fork: neither sees the other's message."""
    async with (
        ScriptedUpstream(lambda body: f"Reply to {body['messages'][-1]['content']}") as upstream,
        serve_twice(url, upstream, tmp_path) as ((_, one), (_, two)),
    ):
        first = await one.responses.create(model="gpt-4o", input="Begin.")

        async def go_on(client: Any, text: str) -> Any:
            return await client.responses.create(model="gpt-4o", input=text, previous_response_id=first.id)

        left, right = await asyncio.gather(go_on(one, "Left."), go_on(two, "Right."))
        assert (left.output_text, right.output_text) == ("Reply to Left.", "Reply to Right.")
        assert left.session_id != right.session_id
        for received in upstream.requests[1:]:
            texts = [message["content"] for message in received.body["messages"]]
            assert texts in (["Begin.", "Reply to Begin.", "Left."], ["Begin.", "Reply to Begin.", "Right."])


async def test_pages_while_items_are_added(url: str, tmp_path: Path) -> None:
    """A list in descending order has each item that existed at its beginning once, although others are added meanwhile."""
    async with ScriptedUpstream() as upstream, serve_twice(url, upstream, tmp_path) as ((_, one), (_, two)):
        conversation = await one.conversations.create(items=[{"role": "user", "content": f"{n}"} for n in range(20)])
        seen: list[str] = []
        page = await one.conversations.items.list(conversation.id, limit=3)
        while True:
            seen += [item.content[0].text for item in page.data]
            added = [{"role": "user", "content": f"later {len(seen)} {n}"} for n in range(2)]
            await two.conversations.items.create(conversation.id, items=added)
            if not page.has_next_page():
                break
            page = await page.get_next_page()
        assert seen == [f"{n}" for n in reversed(range(20))]


KEY = {"Idempotency-Key": "0123456789abcdef"}


@pytest.mark.parametrize("named", [{"session_id": "s"}, {}], ids=["session", "no session"])
async def test_keyed_turn_of_a_killed_server_is_finished_once(url: str, tmp_path: Path, named: dict[str, str]) -> None:
    """The retry waits at the other server. The tool has run once then, and each further retry gets the same reply."""
    gate = Gate()
    tool, part = Reply(tool_calls=[("count", {})]), Reply(text=WORDS, hold=gate, hold_after=2)
    async with (
        ScriptedUpstream([tool, part, "done"]) as upstream,
        serve_twice(url, upstream, tmp_path) as ((killed, one), (left, two)),
    ):
        question: list[Any] = [{"role": "user", "content": "Count."}]
        asked: dict[str, Any] = {"model": "gpt-4o", "messages": question, "user": "ada", "extra_body": named}
        stream = await one.chat.completions.create(**asked, stream=True, extra_headers=KEY)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        waiting = asyncio.create_task(two.chat.completions.create(**asked, extra_headers=KEY))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.to_thread(killed.kill)
        with suppress(openai.APIError):
            await stream.close()
        gate.open()
        told = [await waiting, *[await two.chat.completions.create(**asked, extra_headers=KEY) for _ in range(2)]]
        assert {(one.id, one.choices[0].message.content) for one in told} == {(told[0].id, "done")}
        assert len(upstream.requests) == 3
        async with httpx2.AsyncClient(base_url=left.url) as http:
            path = f"/v1/sessions/{told[0].session_id}/messages"
            rows = (await http.get(path, params={"user_id": "ada"})).json()["data"]
        assert [row["content"] for row in rows] == ["Count.", None, "1", "done"]


async def test_attempts_with_a_key_at_both_servers_are_one_turn(url: str, tmp_path: Path) -> None:
    """Side by side, without a session: one of them calls the model."""
    async with (
        ScriptedUpstream(lambda body: body["messages"][-1]["content"]) as upstream,
        serve_twice(url, upstream, tmp_path) as servers,
    ):
        for number in range(5):
            question: list[Any] = [{"role": "user", "content": f"Book {number}."}]
            key = {"Idempotency-Key": f"booking-number-{number}"}
            asked: dict[str, Any] = {"model": "gpt-4o", "messages": question, "user": "ada", "extra_headers": key}
            told = await asyncio.gather(*(client.chat.completions.create(**asked) for _, client in servers))
            assert told[0].id == told[1].id
            assert told[0].session_id == told[1].session_id
        assert len(upstream.requests) == 5
