"""Anthropic's message threads, with the SDK's own helper, for models that are not Anthropic's and for those that are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import beta_async_tool

from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.clocks import TickingClock
from tests.edges.gateway_kit import gateway_with_tools
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Process, Served, config_text, gateway
from tests.edges.test_anthropic_upstream import claude
from tests.stores.servers import place
from tests.waits import until

BETA = "message-threads-2026-08-12"
TOOL: Any = {"name": "read", "input_schema": {"type": "object", "properties": {"page": {"type": "integer"}}}}


def client(served: Served, **options: Any) -> Any:
    """Return Anthropic's client for a server."""
    options = {"max_retries": 0, "api_key": "k", **options}
    return anthropic.AsyncAnthropic(
        base_url=served.url, http_client=httpx2.AsyncClient(trust_env=False, timeout=60), **options
    )


def list_received(upstream: Any, at: int = -1) -> list[tuple[str, Any]]:
    """Return role and content of the messages that the model received."""
    return [(one["role"], one.get("content")) for one in upstream.requests[at].body["messages"]]


async def send(served: Served, text: str, thread: dict[str, Any], **fields: Any) -> Any:
    """Send a request of a thread, with the new message only; return the decoded answer, with its status as `status`."""
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": BETA, **fields.pop("headers", {})}
    body = {"model": "gpt-4o", "max_tokens": 100, "messages": [{"role": "user", "content": text}], "thread": thread}
    response = await served.http.post("/v1/messages", json={**body, **fields}, headers=headers)
    return {"status": response.status_code, **response.json()}


def continue_after(message: Any, **more: Any) -> dict[str, Any]:
    """Return the field `thread` of a request after a message."""
    return {"type": "continue", "previous_message_id": message["id"], **more}


def code(answer: Any) -> tuple[int, str]:
    """Return the status and the error code of an answer."""
    return answer["status"], answer["error"]["details"]["error_code"]


async def test_mode_header_has_no_effect_in_a_thread() -> None:
    """A client sets the header once for all its requests."""
    async with gateway(["One.", "Two."]) as (served, upstream):
        headers = {"X-Session-Mode": "transcript"}
        first = await send(served, "first", {"type": "create"}, headers=headers)
        second = await send(served, "second", continue_after(first), headers=headers)
        assert second["status"] == 200, second
        assert list_received(upstream) == [("user", "first"), ("assistant", "One."), ("user", "second")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_helper_sends_only_new_messages_and_model_gets_conversation(stream: bool) -> None:
    """The helper of the SDK continues by id; the model gets system prompt, tools and the whole conversation each time."""
    async with gateway(["One.", "Two.", "Three."]) as (served, upstream), client(served) as claude:
        thread = claude.beta.messages.thread(model="gpt-4o", max_tokens=100, system="Be brief.", tools=[TOOL])
        for text in ("first", "second", "third"):
            if stream:
                async with thread.stream({"role": "user", "content": text}) as events:
                    reply = await events.get_final_message()
            else:
                reply = await thread.send({"role": "user", "content": text})
            assert reply.id == thread.previous_message_id
        assert list_received(upstream) == [
            ("system", "Be brief."),
            ("user", "first"),
            ("assistant", "One."),
            ("user", "second"),
            ("assistant", "Two."),
            ("user", "third"),
        ]
        assert [request.body["tools"][0]["function"]["name"] for request in upstream.requests] == ["read"] * 3
        assert all("thread" not in request.body for request in upstream.requests)
        assert len((await served.hf.store.list()).sessions) == 1


async def test_helper_works_with_anthropic_model() -> None:
    """An Anthropic model gets whole messages, and neither the field nor the beta of threads."""
    async with claude(["One.", "Two."]) as (served, upstream), client(served) as sdk:
        thread = sdk.beta.messages.thread(
            model="default", max_tokens=100, system="Be brief.", betas=["pdfs-2024-09-25"]
        )
        await thread.send({"role": "user", "content": "first"})
        async with thread.stream({"role": "user", "content": "second"}) as events:
            assert (await events.get_final_message()).content[0].text == "Two."
        body, headers = upstream.requests[-1].body, upstream.requests[-1].headers
        assert [(one["role"], one["content"][0]["text"]) for one in body["messages"]] == [
            ("user", "first"),
            ("assistant", "One."),
            ("user", "second"),
        ]
        assert body["system"][0]["text"] == "Be brief."
        assert "thread" not in body
        assert headers["anthropic-beta"] == "pdfs-2024-09-25"


async def test_tool_runner_of_helper_runs_tools_over_thread() -> None:
    """The SDK's tool loop sends only results; the model gets the calls and their results in pairs."""
    pages = []

    @beta_async_tool
    async def read(page: int) -> str:
        """Read a page.

        Args:
            page: its number
        """
        pages.append(page)
        return f"Page {page}."

    script = [Reply(tool_calls=[("read", {"page": 1}), ("read", {"page": 2})]), "Done.", "Bye."]
    async with gateway(script) as (served, upstream), client(served) as sdk:
        thread = sdk.beta.messages.thread(
            model="gpt-4o", max_tokens=100, tools=[read], messages=[{"role": "user", "content": "Read two pages."}]
        )
        last = await thread.tool_runner().until_done()
        assert last.content[0].text == "Done."
        await thread.send({"role": "user", "content": "Thanks."})
        assert pages == [1, 2]
        assert [role for role, _ in list_received(upstream, 1)] == ["user", "assistant", "tool", "tool"]
        assert [content for role, content in list_received(upstream) if role == "tool"] == ["Page 1.", "Page 2."]
        assert list_received(upstream)[-2:] == [("assistant", "Done."), ("user", "Thanks.")]


async def test_tools_of_the_server_run_once_although_continuations_fail() -> None:
    """Calls of the server's own tools are part of a message. After a failure, they are not run again."""
    numbers = []

    async def find_order(number: int) -> str:
        """Find an order.

        Args:
            number: its number
        """
        numbers.append(number)
        return f"order {number}"

    mixed = Reply(tool_calls=[("find_order", {"number": 8}), ("read", {"page": 1})])
    down = Reply(status=500, error="down")
    found = Reply(tool_calls=[("find_order", {"number": 9})])
    script = [Reply(tool_calls=[("find_order", {"number": 7})]), "Sent.", mixed, down, "Read.", found, down, "Found."]
    async with gateway_with_tools(script, find_order) as (served, upstream):
        one = await send(served, "a", {"type": "create"}, tools=[TOOL])
        assert one["content"][0]["text"] == "Sent."
        two = await send(served, "b", continue_after(one))
        (use,) = [block for block in two["content"] if block["type"] == "tool_use"]
        assert use["name"] == "read"
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "page 1"}
        answers = [
            await send(served, "", continue_after(two), messages=[{"role": "user", "content": [result]}])
            for _ in range(2)
        ]
        assert answers[0]["status"] >= 500
        assert answers[1]["content"][0]["text"] == "Read."
        assert code(await send(served, "x", continue_after(two))) == (400, "thread_already_continued")
        three = [await send(served, "c", continue_after(answers[1])) for _ in range(2)]
        assert three[1]["content"][0]["text"] == "Found."
        assert numbers == [7, 8, 9]
        roles = [role for role, _ in list_received(upstream)]
        begin = ["user", "assistant", "tool", "assistant"]
        assert roles == [*begin, "user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool"]


async def test_message_is_continued_once_and_forks_share_its_beginning() -> None:
    """A second continuation is refused; with `fork: true` it goes on in a copy, which is a thread too."""
    async with gateway(["One.", "Two.", "Three.", "Four."]) as (served, upstream):
        first = await send(served, "a", {"type": "create"}, system="Be brief.", tools=[TOOL])
        second = await send(served, "b", continue_after(first))
        assert second["session_id"] == first["session_id"]
        assert code(await send(served, "c", continue_after(first))) == (400, "thread_already_continued")
        assert len(upstream.requests) == 2
        other = await send(served, "c", continue_after(first, fork=True))
        assert other["session_id"] != first["session_id"]
        assert list_received(upstream) == [("system", "Be brief."), ("user", "a"), ("assistant", "One."), ("user", "c")]
        await send(served, "d", continue_after(other))
        assert [content for _, content in list_received(upstream)] == ["Be brief.", "a", "One.", "c", "Three.", "d"]
        assert upstream.requests[-1].body["tools"][0]["function"]["name"] == "read"
        log = await served.log(first["session_id"])
        assert [content for _, content in log] == ["a", "One.", "b", "Two."]


async def test_helper_replays_whole_conversation_when_it_was_continued_elsewhere() -> None:
    """After `thread_already_continued`, the SDK creates a new thread; the other thread does not change."""
    async with gateway(["One.", "Two.", "Three."]) as (served, upstream), client(served) as sdk:
        thread = sdk.beta.messages.thread(model="gpt-4o", max_tokens=100)
        first = await thread.send({"role": "user", "content": "a"})
        await send(served, "b", {"type": "continue", "previous_message_id": first.id})
        reply = await thread.send({"role": "user", "content": "c"})
        assert reply.content[0].text == "Three."
        assert list_received(upstream) == [
            ("user", "a"),
            ("assistant", [{"type": "text", "text": "One."}]),
            ("user", "c"),
        ]
        sessions = (await served.hf.store.list()).sessions
        logs = [[entry.message.text for entry in await served.hf.store.entries(one.ref)] for one in sessions]
        assert sorted(logs) == [["a", "One.", "b", "Two."], ["a", "One.", "c", "Three."]]


@pytest.mark.parametrize("queue", [None, "queue"], ids=["refused at once", "waits"])
async def test_one_of_two_concurrent_continuations_wins(queue: str | None) -> None:
    """The other one is refused at once; a request that wants to wait is refused when the first one has ended."""
    gate = Gate()

    def answer(body: dict[str, Any]) -> Any:
        return Reply(text="slow reply", hold=gate) if body["messages"][-1]["content"] == "b" else "re"

    async with gateway(answer) as (served, upstream):
        first = await send(served, "a", {"type": "create"})
        ref = SessionRef("default", first["session_id"])
        running = asyncio.create_task(send(served, "b", continue_after(first)))
        await upstream.until(lambda: len(upstream.requests) == 2)
        if queue is None:
            assert code(await send(served, "c", continue_after(first))) == (400, "thread_continue_in_flight")
            gate.open()
        else:
            waiting = asyncio.create_task(send(served, "c", continue_after(first), session_queue=queue))
            await until(lambda: len(served.hf.engine.locks.list_line(ref)) == 2)
            gate.open()
            assert code(await waiting) == (400, "thread_already_continued")
        assert (await running)["content"][0]["text"] == "slow reply"
        assert [content for _, content in await served.log(first["session_id"])] == ["a", "re", "b", "slow reply"]


async def test_other_user_does_not_find_the_thread() -> None:
    """A message id of another user, a made-up one and one of a deleted session are all `thread_not_found`."""
    async with gateway(lambda body: "re") as (served, upstream):
        first = await send(served, "a", {"type": "create"}, user_id="ada")
        foreign = await send(served, "b", continue_after(first), user_id="bob")
        assert code(foreign) == (404, "thread_not_found")
        changed = first["id"][:-1] + ("0" if first["id"][-1] != "0" else "1")
        for name in (changed, "msg_1", "x" * 5_000, first["id"].replace("msg_", "resp_") + "n1"):
            missing = await send(served, "b", {"type": "continue", "previous_message_id": name}, user_id="ada")
            assert code(missing) == (404, "thread_not_found")
        assert len(upstream.requests) == 1
        await served.hf.store.remove(SessionRef("ada", first["session_id"]))
        assert code(await send(served, "b", continue_after(first), user_id="ada")) == (404, "thread_not_found")


async def test_key_of_another_tenant_does_not_find_the_thread() -> None:
    """Neither another tenant nor another user of the same tenant continues, forks or compares by an id."""
    async with gateway(lambda body: "re", "auth: {required: true}") as (served, upstream):
        ada, bob = [
            {"headers": bearer(await create_stored_key(served.hf, role="write", user_id=user))}
            for user in ("ada", "bob")
        ]
        other = {"headers": bearer(await create_stored_key(served.hf, role="write", user_id="ada", tenant="t2"))}
        first = await send(served, "a", {"type": "create"}, **ada)
        for caller in (bob, other):
            for more in ({}, {"fork": True}):
                assert code(await send(served, "b", continue_after(first, **more), **caller)) == (
                    404,
                    "thread_not_found",
                )
            compared = await send(
                served, "a", {"type": "create"}, diagnostics={"previous_message_id": first["id"]}, **caller
            )
            assert compared["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
        assert (await send(served, "b", continue_after(first), **ada))["status"] == 200
        assert len(upstream.requests) == 4


async def test_message_without_thread_cannot_be_continued() -> None:
    """A message of a request without `thread` has no place in its id, and is not found."""
    async with gateway(lambda body: "re") as (served, _):
        plain = await served.http.post(
            "/v1/messages", json={"model": "gpt-4o", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
        )
        assert code(await send(served, "b", continue_after(plain.json()))) == (404, "thread_not_found")


@pytest.mark.parametrize("again", ["b", "other"])
async def test_failed_continuation_can_be_sent_again(again: str) -> None:
    """A continuation without a reply does not count: the same message is not stored twice, another one replaces it."""
    failure = Reply(status=500, error="down")
    async with gateway(["One.", failure, "Two."]) as (served, upstream):
        first = await send(served, "a", {"type": "create"})
        assert (await send(served, "b", continue_after(first)))["status"] >= 500
        second = await send(served, again, continue_after(first))
        assert second["content"][0]["text"] == "Two."
        assert list_received(upstream) == [("user", "a"), ("assistant", "One."), ("user", again)]
        assert [content for _, content in await served.log(first["session_id"])] == ["a", "One.", again, "Two."]
        assert code(await send(served, "c", continue_after(first))) == (400, "thread_already_continued")


async def test_reply_that_was_cut_can_be_continued_again() -> None:
    """A stream that broke off left a part of the reply; the next attempt replaces it."""
    cut = Reply(text="one two three four", cut_after=3, reset=True)
    async with gateway(["One.", cut, "Two."]) as (served, _):
        first = await send(served, "a", {"type": "create"})
        assert (await send(served, "b", continue_after(first)))["status"] >= 500
        second = await send(served, "b", continue_after(first))
        assert second["content"][0]["text"] == "Two."
        assert [content for _, content in await served.log(first["session_id"])] == ["a", "One.", "b", "Two."]


async def test_metadata_of_a_message_is_stored_in_a_thread_with_a_system_prompt() -> None:
    async with gateway(["One.", "Two."]) as (served, _):
        first = await send(served, "a", {"type": "create"}, system="Be kind.")
        new = {"role": "user", "content": "b", "metadata": {"mood": "calm"}}
        second = await send(served, "", continue_after(first), messages=[new])
        assert second["status"] == 200
        path = f"/v1/sessions/{first['session_id']}/messages"
        stored = [one for one in (await served.http.get(path)).json()["data"] if one["role"] == "user"]
        assert [(one["content"], one.get("metadata")) for one in stored] == [("a", None), ("b", {"mood": "calm"})]


async def test_message_that_another_api_appended_is_not_replaced() -> None:
    """Messages that no attempt of the thread wrote count as a continuation."""
    async with gateway(lambda body: "re") as (served, _):
        first = await send(served, "a", {"type": "create"})
        path = f"/v1/sessions/{first['session_id']}/messages"
        await served.http.post(path, json={"messages": [{"role": "user", "content": "from elsewhere"}]})
        assert code(await send(served, "b", continue_after(first))) == (400, "thread_already_continued")
        assert [content for _, content in await served.log(first["session_id"])] == ["a", "re", "from elsewhere"]


async def test_idempotency_key_repeats_the_continuation() -> None:
    """The same key gets the stored message with the same id; another key is refused."""
    async with gateway(["One.", "Two."]) as (served, upstream):
        first = await send(served, "a", {"type": "create"})
        keyed = {"headers": {"idempotency-key": "k1"}}
        second = await send(served, "b", continue_after(first), **keyed)
        repeated = await send(served, "b", continue_after(first), **keyed)
        assert (repeated["id"], repeated["content"]) == (second["id"], second["content"])
        refused = await send(served, "b", continue_after(first), headers={"idempotency-key": "k2"})
        assert code(refused) == (400, "thread_already_continued")
        assert len(upstream.requests) == 2


async def test_key_does_not_bring_a_request_into_another_continuation() -> None:
    """A request after the first message has a key. The thread ends in a failed tool round for the same words, after a later message."""

    async def find_order(number: int) -> str:
        """Find an order.

        Args:
            number: its number
        """
        return f"order {number}"

    found, down = Reply(tool_calls=[("find_order", {"number": 7})]), Reply(status=500, error="down")
    async with gateway_with_tools(["One.", "Two.", found, down, "no"], find_order) as (served, upstream):
        first = await send(served, "a", {"type": "create"})
        second = await send(served, "b", continue_after(first))
        assert (await send(served, "go on", continue_after(second)))["status"] >= 500
        refused = await send(served, "go on", continue_after(first), headers={"idempotency-key": "k1"})
        assert code(refused) == (400, "thread_already_continued")
        assert len(upstream.requests) == 4


@pytest.mark.parametrize("by", ["key", "key on another server", "retry count"])
async def test_repeated_fork_makes_one_copy(by: str, tmp_path: Path) -> None:
    """A repeated request with `fork` gets the stored message, and no further copy is made."""
    counts = iter("01")
    headers = {"idempotency-key": "k1"}
    url = f"sqlite:///{tmp_path}/s.db"
    async with gateway(["One.", "Two."], store=url) as (one, upstream), gateway(["no"], store=url) as (two, _):
        first = await send(one, "a", {"type": "create"})
        answers = []
        for served in (one, two if by == "key on another server" else one):
            headers = {"x-stainless-retry-count": next(counts)} if by == "retry count" else headers
            answers.append(await send(served, "b", continue_after(first, fork=True), headers=headers))
        assert answers[0]["id"] == answers[1]["id"]
        assert answers[1]["content"][0]["text"] == "Two."
        assert len(upstream.requests) == 2
        assert len((await one.hf.store.list()).sessions) == 2


@pytest.mark.parametrize(
    "fields", [{"tools": 7}, {"max_tokens": 10**9}, {"agent": "none"}, {"compaction": {"type": "x"}}]
)
async def test_refused_fork_leaves_no_copy(fields: dict[str, Any]) -> None:
    """A request that is not valid is refused before the thread is copied."""
    async with gateway(lambda body: "re") as (served, _):
        first = await send(served, "a", {"type": "create"})
        assert (await send(served, "b", continue_after(first, fork=True), **fields))["status"] >= 400
        assert len((await served.hf.store.list()).sessions) == 1


async def test_retry_of_the_sdk_gets_the_first_reply() -> None:
    """An attempt that the SDK marks as a retry joins the first one instead of being refused."""
    async with gateway(["One.", "Two."]) as (served, upstream):
        first = await send(served, "a", {"type": "create"})
        counts = [{"headers": {"x-stainless-retry-count": str(count)}} for count in (0, 1)]
        second, repeated = [await send(served, "b", continue_after(first), **count) for count in counts]
        assert (repeated["id"], repeated["content"]) == (second["id"], second["content"])
        assert len(upstream.requests) == 2


async def test_killed_server_loses_no_thread(tmp_path: Path) -> None:
    """After kill -9, another server finds the thread by the id of the last message."""
    url, ids = f"sqlite:///{tmp_path}/s.db", list[str]()
    for text in ("first", "second", "third"):
        with Process(url) as server:
            http = httpx2.Client(trust_env=False)
            sdk = anthropic.Anthropic(base_url=server.url, api_key="k", http_client=http)
            thread: Any = {"type": "continue", "previous_message_id": ids[-1]} if ids else {"type": "create"}
            reply = sdk.beta.messages.create(
                model="default",
                max_tokens=100,
                messages=[{"role": "user", "content": text}],
                extra_body={"thread": thread},
                betas=[BETA],
            )
            ids.append(reply.id)
            server.process.kill()
            http.close()
    store = await open_store(url, tenant="default")
    try:
        (session,) = (await store.list()).sessions
        entries = await store.entries(session.ref)
        assert [one.message.content for one in entries if one.message.role == "user"] == ["first", "second", "third"]
    finally:
        await store.close()


async def test_server_that_is_killed_during_a_continuation_leaves_it_to_another(tmp_path: Path) -> None:
    """The message is in the log without a reply. Another server accepts the same request, and stores the message once."""
    gate, url, config = Gate(), f"sqlite:///{tmp_path}/s.db", tmp_path / "c.yaml"

    def answer(body: dict[str, Any]) -> Any:
        held = body["messages"][-1]["content"] == "b" and not gate_is_passed
        return Reply(text="re", hold=gate) if held else "re"

    gate_is_passed = False
    async with ScriptedUpstream(answer) as upstream, httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        config.write_text(config_text(upstream.url))

        async def post(server: Process, text: str, thread: dict[str, Any]) -> Any:
            body = {"max_tokens": 9, "messages": [{"role": "user", "content": text}], "thread": thread}
            return (await http.post(f"{server.url}/v1/messages", json=body)).json()

        with Process(url, config=config) as one:
            first = await post(one, "a", {"type": "create"})
            cut = asyncio.create_task(post(one, "b", continue_after(first)))
            await upstream.until(lambda: len(upstream.requests) == 2)
            one.process.kill()
            with pytest.raises(httpx2.TransportError):
                await cut
        gate_is_passed = True
        with Process(url, config=config) as other:
            second = await post(other, "b", continue_after(first))
            assert second["content"][0]["text"] == "re"
            third = await post(other, "c", continue_after(second))
            assert third["content"][0]["text"] == "re"
        contents = [content for _, content in list_received(upstream)]
        assert contents == ["a", "re", "b", "re", "c"]
        gate.open()


@pytest.mark.parametrize("name", ["sqlite", "postgres", "mysql"])
async def test_only_one_of_many_continuations_on_two_servers_is_stored(name: str, tmp_path: Path) -> None:
    """Requests race on two servers. The log has one continuation, and every other request is refused or forks."""
    with place(name, tmp_path) as url:
        same: dict[str, Any] = {"store": url, "clock": TickingClock(1)}  # claims on sessions do not expire
        async with gateway(lambda body: "re", **same) as (one, _), gateway(lambda body: "re", **same) as (other, _):
            last = await send(one, "a", {"type": "create"})
            for round_ in range(3):
                asked = [
                    send((one, other)[at % 2], f"{round_}.{at}", continue_after(last, fork=at == 5)) for at in range(6)
                ]
                answers = await asyncio.gather(*asked)
                forked = answers.pop()
                assert forked["session_id"] != last["session_id"]
                won = [one for one in answers if one["status"] == 200]
                assert len(won) == 1
                refused = {code(one) for one in answers if one["status"] != 200}
                assert refused <= {(400, "thread_already_continued"), (400, "thread_continue_in_flight")}
                last = won[0]
            contents = [content for _, content in await one.log(last["session_id"])]
            assert contents[:2] == ["a", "re"]
            assert [content.partition(".")[0] for content in contents[2::2]] == ["0", "1", "2"]


@pytest.mark.parametrize("name", ["sqlite", "postgres", "mysql"])
async def test_other_server_continues_at_once_on_each_store(name: str, tmp_path: Path) -> None:
    """A message that one server sent is continued by another one, and only by one of the two."""
    with place(name, tmp_path) as url:
        async with gateway(["One."], store=url) as (one, _), gateway(["Two."], store=url) as (other, upstream):
            first = await send(one, "a", {"type": "create"})
            second = await send(other, "b", continue_after(first))
            assert second["content"][0]["text"] == "Two."
            assert list_received(upstream) == [("user", "a"), ("assistant", "One."), ("user", "b")]
            assert code(await send(one, "c", continue_after(first))) == (400, "thread_already_continued")


async def test_tools_change_during_the_thread() -> None:
    """Blocks in system messages add and remove tools, for this turn and all later ones, also in a fork."""
    search: Any = {"name": "search", "input_schema": {"type": "object"}}

    def change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    async with gateway(lambda body: "re") as (served, upstream):
        one = await send(served, "a", {"type": "create"}, tools=[TOOL])
        added = [change("tool_addition", {"type": "tool_definition", "definition": search})]
        two = await send(served, "", continue_after(one), messages=[*added, {"role": "user", "content": "b"}])
        removed = [change("tool_removal", {"type": "tool_reference", "name": "read"})]
        three = await send(served, "", continue_after(two), messages=[*removed, {"role": "user", "content": "c"}])
        four = await send(served, "d", continue_after(three, fork=True))
        back = [change("tool_addition", {"type": "tool_reference", "name": "read"})]
        await send(served, "", continue_after(four), messages=[*back, {"role": "user", "content": "e"}])
        names = [[tool["function"]["name"] for tool in request.body["tools"]] for request in upstream.requests]
        assert names == [["read"], ["read", "search"], ["search"], ["search"], ["search", "read"]]
        assert [content for _, content in list_received(upstream)] == ["a", "re", "b", "re", "c", "re", "d", "re", "e"]


async def test_system_messages_of_the_conversation_stay_in_their_place() -> None:
    """A system message among the messages is neither moved to the system prompt nor forgotten, first or last, with a system prompt or without."""
    for system, front in (("Be brief.", [("system", "Be brief.")]), (None, [])):
        fields = {"system": system} if system else {}
        async with gateway(lambda body: "re") as (served, upstream):
            begin = [{"role": "system", "content": "zero"}, {"role": "user", "content": "a"}]
            one = await send(served, "", {"type": "create"}, messages=begin, **fields)
            ask = [{"role": "system", "content": "first"}, {"role": "user", "content": "b"}]
            two = await send(served, "", continue_after(one), messages=[*ask, {"role": "system", "content": "last"}])
            await send(served, "c", continue_after(two))
            prompts = [("system", "zero"), ("user", "a"), ("assistant", "re"), ("system", "first"), ("user", "b")]
            prompts += [("system", "last"), ("assistant", "re"), ("user", "c")]
            assert list_received(upstream) == [*front, *prompts]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"thread": {"type": "join"}}, (400, "invalid_request")),
        ({"thread": "create"}, (400, "invalid_request")),
        ({"thread": {"type": "create", "fork": True}}, (400, "invalid_request")),
        ({"thread": {"type": "continue"}}, (400, "invalid_request")),
        ({"thread": {"type": "continue", "previous_message_id": 7}}, (400, "invalid_request")),
        ({"system": "Other."}, (400, "thread_fingerprint_mismatch")),
        ({"tools": [TOOL, TOOL]}, (400, "thread_fingerprint_mismatch")),
        ({"session_id": "other"}, (400, "invalid_request")),
        ({"messages": [{"role": "system", "content": "x", "clear_at": "next_user_message"}]}, (400, "invalid_request")),
        (
            {"messages": [{"role": "system", "content": "x", "output_config": {"effort": "low"}}]},
            (400, "invalid_request"),
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "mcp_toolset_reference"}}]}
                ]
            },
            (400, "invalid_request"),
        ),
    ],
)
async def test_invalid_continuation_is_refused_by_name(fields: dict[str, Any], expected: tuple[int, str]) -> None:
    """The error names the field, and nothing is written."""
    async with gateway(lambda body: "re") as (served, _):
        first = await send(served, "a", {"type": "create"}, system="Be brief.", tools=[TOOL])
        answer = await send(
            served,
            "b",
            fields.get("thread", continue_after(first)),
            **{k: v for k, v in fields.items() if k != "thread"},
        )
        assert code(answer) == expected
        assert next(iter(fields)) in (answer["error"]["param"] or answer["error"]["message"])
        assert len(await served.log(first["session_id"])) == 2


async def test_large_tools_are_no_thread() -> None:
    """The client learns which fields are too large, and the SDK's helper goes on without a thread."""
    large = [{**TOOL, "description": "x" * 600_000}]
    async with gateway(lambda body: "re") as (served, upstream), client(served) as sdk:
        answer = await send(served, "a", {"type": "create"}, tools=large)
        assert code(answer) == (400, "thread_unsupported_request")
        assert answer["error"]["details"]["unsupported"] == ["system", "tools"]
        thread = sdk.beta.messages.thread(
            model="gpt-4o", max_tokens=9, tools=large, unsupported_request_behavior="continue_unthreaded"
        )
        for text in ("a", "b"):
            await thread.send({"role": "user", "content": text})
        assert [content for _, content in list_received(upstream)] == ["a", "re", "b"]
