"""Session matching of equal conversations: each keeps its own session, and no person sees another's data."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, Timeout

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import Served, assistant, count_connections, gateway, until, user

Data = dict[str, Any]
ANYONE = "gateway: {single_user: false}"
"""Requests that name no user may come from anyone."""


def reply_to(body: Data) -> str:
    """Return the same reply to the same question, as with a cache or temperature 0."""
    return f"re: {body['messages'][-1]['content']}"


class Client:
    """A client that resends its whole history and names no session."""

    def __init__(self, served: Served, **fields: Any) -> None:
        self.served = served
        self.fields = fields
        self.history: list[Data] = []
        self.session_id = ""

    async def ask(self, *messages: Data | str, headers: dict[str, str] | None = None, **fields: Any) -> Data:
        self.history += [user(one) if isinstance(one, str) else one for one in messages]
        return await self.resend(headers=headers, **fields)

    async def resend(self, *, headers: dict[str, str] | None = None, **fields: Any) -> Data:
        body = {"model": "gpt-4o", "messages": self.history, **self.fields, **fields}
        answer = await self.served.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        told: Data = answer.json()
        self.session_id = told["session_id"]
        self.history.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
        return told


async def read(served: Served, session_id: str, owner: str = "default", *, retired: bool = False) -> list[str]:
    """Return the texts of a session."""
    return [row.get("content") or "" for row in await served.entries(session_id, owner, retired=retired)]


async def sessions(served: Served) -> dict[str, list[str]]:
    """The texts of every session, retired ones included."""
    rows = await served.rest.sessions(limit=100)
    return {row["id"]: await read(served, row["id"], row["user_id"], retired=True) for row in rows}


async def test_edits_and_regenerations_of_people_without_names_change_no_session() -> None:
    """Each gets a new session of its own messages; the first one is unchanged."""
    async with gateway(lambda body: f"re {len(body['messages'])}", ANYONE) as served:
        client = Client(served)
        await client.ask("Hi")
        await client.ask("a story?")
        first, before = client.session_id, await read(served, client.session_id)
        for _ in range(5):
            client.history.pop()
            assert (await client.resend())["session"]["reconciled"] == "unplaced"
        assert await read(served, first, retired=True) == before
        assert len(served.upstream.requests) == 7


@pytest.mark.parametrize(
    ("config", "fields"),
    [(ANYONE, {"user": "ada"}), ("", {}), ("gateway: {single_user: false, match: anyone}", {})],
    ids=["named", "single user", "match anyone"],
)
async def test_edit_of_an_idle_session_stays_in_place(config: str, fields: Data) -> None:
    """Five regenerations by one person are one session."""
    async with gateway(lambda body: f"re {len(body['messages'])}", config) as served:
        client = Client(served, **fields)
        await client.ask("Hi")
        await client.ask("a story?")
        for _ in range(5):
            client.history.pop()
            assert (await client.resend())["session"]["reconciled"] == "regenerated"
        assert len(await sessions(served)) == 1


async def create_hidden_tool_result(served: Served, session_id: str, result: str) -> list[Data]:
    """Create a session with a tool result that its client never received; return what the client received."""
    shown = [user("my balance?"), {"role": "assistant", "content": "I have looked it up."}]
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tools = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    tools.append({"role": "tool", "tool_call_id": "c", "content": result})
    await served.rest.given(session_id, shown[0], *tools, shown[1])
    return shown


@pytest.mark.parametrize(("config", "known"), [("", True), (ANYONE, False)], ids=["single user", "anyone"])
async def test_hidden_tool_results_are_given_only_to_their_user(config: str, known: bool) -> None:
    async with gateway(reply_to, config) as served:
        shown = await create_hidden_tool_result(served, "s", "secret")
        client = Client(served)
        await client.ask(*shown, "and now?")
        assert ("secret" in str(served.upstream.requests[-1].body["messages"])) is known
        assert (client.session_id == "s") is known


async def test_exact_continuation_is_found_after_many_equal_openings() -> None:
    async with gateway(reply_to) as served:
        client = Client(served)
        await client.ask("Hi")
        first = client.session_id
        for at in range(70):
            await served.rest.given(f"other{at}", *client.history, user(f"{at}"))
        await client.ask("and now?")
        assert client.session_id == first


# -- retries --------------------------------------------------------------------------


@pytest.mark.parametrize("opening", [(), ("Hi",)], ids=["first turn", "second turn"])
async def test_sdk_retry_joins_the_running_turn(opening: tuple[str, ...]) -> None:
    """One model call, one session, and the reply of the first attempt with its id."""
    gate = Gate()

    def reply_when_released(body: Data) -> Reply:
        return Reply(text=reply_to(body), hold=gate if body["messages"][-1]["content"] == "slow" else None)

    async with gateway(reply_when_released) as served:
        client = Client(served)
        for text in opening:
            await client.ask(text)
        own = {"on_disconnect": "finish", "session_queue": "reject"}  # which is not for its own retry
        body = {"model": "gpt-4o", "messages": [*client.history, user("slow")], **own}
        before = len(served.upstream.requests)

        async def send(count: int) -> Data:
            headers = {"x-stainless-retry-count": str(count)}
            answer = await served.http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        first = asyncio.create_task(send(0))
        await served.upstream.until(lambda: len(served.upstream.requests) == before + 1)
        again = asyncio.create_task(send(1))
        await served.until_waiting()
        gate.open()
        told, retold = await first, await again
        assert retold["choices"][0]["message"] == told["choices"][0]["message"]
        assert (retold["session_id"], retold["session"]["reconciled"]) == (told["session_id"], "replayed")
        assert len(served.upstream.requests) == before + 1
        assert len(await sessions(served)) == 1


async def test_sdk_retry_after_a_timeout_gets_the_first_reply() -> None:
    """The model is called once although the client disconnected; a disconnect for another reason still ends its turn."""
    gate = Gate()
    async with gateway(lambda body: Reply(text=reply_to(body), hold=gate)) as served:
        sdk = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=Timeout(60, read=1), max_retries=9)
        asking = asyncio.create_task(
            sdk.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "pay"}])
        )
        await served.until_waiting()
        gate.open()
        assert (await asking).choices[0].message.content == "re: pay"
        assert list((await sessions(served)).values()) == [["pay", "re: pay"]]
        await sdk.close()
        assert len(served.upstream.requests) == 1


async def test_retry_repeats_the_abandoned_one_of_two_equal_requests() -> None:
    """A's retry never joins B's turn, although A and B said the same at the same time."""
    gates = [Gate(), Gate()]
    held = iter(gates)
    async with gateway(lambda _: Reply(text="paid", hold=next(held))) as served:
        body = {"model": "gpt-4o", "messages": [user("pay")]}

        async def send(count: int, **headers: str) -> Data:
            headers |= {"x-stainless-retry-count": str(count), "x-stainless-timeout": "0.1"}
            answer = await served.http.post("/v1/chat/completions", json=body, headers=headers, timeout=60)
            return dict(answer.json())

        bob = asyncio.create_task(send(0))
        await served.upstream.until(lambda: len(served.upstream.requests) == 1)
        ada = asyncio.create_task(send(0))
        await served.upstream.until(lambda: len(served.upstream.requests) == 2)
        await asyncio.sleep(0.1)  # the client's own time limit
        ada.cancel()
        await until(lambda: count_connections(served.server) == 1)
        again = asyncio.create_task(send(1))
        await served.until_waiting()
        for gate in gates:
            gate.open()
        assert (await again)["session_id"] != (await bob)["session_id"]
        assert len(served.upstream.requests) == 2
        assert len(await sessions(served)) == 2


async def test_retry_after_a_failure_leaves_no_empty_session() -> None:
    async with gateway([Reply(status=500), "there you are"]) as served:
        body = {"model": "gpt-4o", "messages": [user("hello?")]}
        first = await served.http.post("/v1/chat/completions", json=body, headers={"x-stainless-retry-count": "0"})
        assert first.status_code == 502
        again = await served.http.post("/v1/chat/completions", json=body, headers={"x-stainless-retry-count": "1"})
        assert again.json()["session"]["reconciled"] == "replayed"
        assert list((await sessions(served)).values()) == [["hello?", "there you are"]]
        assert len(served.upstream.requests) == 2


@pytest.mark.parametrize("broken", [Reply(status=500), Reply(text="one two three", cut_after=2)], ids=["none", "cut"])
async def test_retry_after_another_message_was_answered_is_a_new_message(broken: Reply) -> None:
    """The user said it again after the other reply. The prompt ends with it, and no provider gets a prompt that ends with a reply."""
    async with gateway([broken, "re: two", "re: one", "never"]) as served:

        async def send(text: str, count: int) -> Data:
            body = {"model": "gpt-4o", "messages": [user(text)], "session_id": "s"}
            headers = {"x-stainless-retry-count": str(count)}
            answer = await served.http.post("/v1/chat/completions", json=body, headers=headers)
            return {"status": answer.status_code, **answer.json()}

        assert (await send("one", 0))["status"] == 502
        assert (await send("two", 0))["status"] == 200
        for count in (1, 2):
            assert (await send("one", count))["choices"][0]["message"]["content"] == "re: one"
        assert len(served.upstream.requests) == 3
        assert (await read(served, "s"))[-4:] == ["two", "re: two", "one", "re: one"]
        roles = [one["role"] for one in served.upstream.requests[-1].body["messages"]]
        assert roles[-3:] == ["user", "assistant", "user"]


async def test_retry_of_a_history_after_another_message_was_answered_is_matched_again() -> None:
    """It has another message than the one that was answered, so it is an edit."""
    fields = {"user": "ada"}
    async with gateway(["re: Hi", Reply(status=500), "re: two", "re: one"]) as served:
        client = Client(served, **fields)
        await client.ask("Hi")
        opening = client.history
        body = {"model": "gpt-4o", "messages": [*opening, user("one")], **fields}
        headers = {"x-stainless-retry-count": "0"}
        failed = await served.http.post("/v1/chat/completions", json=body, headers=headers)
        assert failed.status_code == 502
        await served.chat("two", client.session_id, **fields)
        headers = {"x-stainless-retry-count": "1"}
        again = (await served.http.post("/v1/chat/completions", json=body, headers=headers)).json()
        assert again["choices"][0]["message"]["content"] == "re: one"
        asked = [one["content"] for one in served.upstream.requests[-1].body["messages"]]
        assert asked == ["Hi", "re: Hi", "one"]


async def test_equal_requests_without_retry_marks_are_two_turns() -> None:
    async with gateway(reply_to) as served:
        for _ in range(2):
            await Client(served).ask("Hi", headers={"x-stainless-retry-count": "0"})
        assert len(served.upstream.requests) == len(await sessions(served)) == 2
        await Client(served).ask("Hi", headers={"x-stainless-retry-count": "1"})
        assert len(served.upstream.requests) == len(await sessions(served)) == 2


async def test_a_session_that_ends_with_the_beginning_of_a_request_is_preferred() -> None:
    """Among the newest sessions that have it, and go on differently, nothing would need to be retired."""
    begin = [user("Hi"), assistant("Hello.")]
    async with gateway(reply_to) as served:
        for number in range(20):
            more = [user(f"What is {number}?"), assistant("A number.")]
            await served.native.import_({"messages": [*begin, *more]}, session_id=f"s{number}")
        assert (await served.chat([*begin, user("And now?")], None))["session"]["reconciled"] == "edited"
        await served.native.import_({"messages": begin}, session_id="own")
        told = await served.chat([*begin, user("Go on.")], None)
        assert (told["session_id"], told["session"]["reconciled"]) == ("own", "continued")


@pytest.mark.parametrize("fields", [{}, {"user": "ada"}], ids=["unnamed", "named"])
@pytest.mark.parametrize("result", [False, True], ids=["message", "tool result"])
async def test_idempotency_key_finds_its_reply_next_to_an_equal_session(fields: Data, result: bool) -> None:
    """The other session is the one that the request continues exactly."""
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": "{}"}}

    def reply_or_call(body: Data) -> Any:
        is_call = result and body["messages"][-1]["content"] == "pay"
        return Reply(tool_calls=[call]) if is_call else reply_to(body)

    async with gateway(reply_or_call) as served:
        clients = [Client(served, **fields) for _ in range(2)]
        for client in clients:
            await client.ask("Hi")
            client.history.append(user("pay"))
            if result:
                await client.resend()
                client.history[-1]["tool_calls"] = [call]
                client.history.append({"role": "tool", "tool_call_id": "c", "content": "paid"})
        key, before = {"Idempotency-Key": "k"}, len(served.upstream.requests)
        first = await clients[0].resend(headers=key)
        logs = await sessions(served)
        clients[0].history.pop()
        again = await clients[0].resend(headers=key)
        assert (again["session_id"], again["session"]["reconciled"]) == (first["session_id"], "replayed")
        assert again["id"] == first["id"]
        assert len(served.upstream.requests) == before + 1
        assert await sessions(served) == logs


async def test_waiting_request_that_would_retire_the_reply_is_rematched() -> None:
    """It continues from the question of a running turn. After that turn's reply it is an edit."""
    fields = {"user": "ada"}
    gate = Gate()

    def reply_when_released(body: Data) -> Reply:
        return Reply(text=reply_to(body), hold=gate if body["messages"][-1]["content"] == "slow" else None)

    async with gateway(reply_when_released) as served:
        client = Client(served, **fields)
        await client.ask("Hi")
        first, opening = client.session_id, list(client.history)
        running = asyncio.create_task(client.ask("slow"))
        await served.upstream.until(lambda: len(served.upstream.requests) == 2)
        other = Client(served, **fields)
        other.history = [*opening, user("slow")]
        waiting = asyncio.create_task(other.ask("and more"))
        await served.until_waiting()
        gate.open()
        await running
        told = await waiting
        assert (told["session"]["reconciled"], client.session_id) == ("edited", first)
        assert await read(served, other.session_id, "ada") == [one["content"] for one in other.history]
        logs = await sessions(served)
        assert len(logs) == 1
        assert logs[first][:4] == [one["content"] for one in client.history]
