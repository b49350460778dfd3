"""Placing where texts repeat: equal replies, windows of equal chats, and what changes while a request waits."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.testing import Gate, Reply
from tests.behaviour.kit import CLAUDE, Served, apis, assistant, gateway, inject, until, user
from tests.behaviour.kit.placing import Client, Device, holding, logs, prompt, reply_to

Row = dict[str, Any]
ADA: Row = {"user": "ada"}
KEY = {"idempotency-key": "k"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def agree(_: Row) -> str:
    """Return the same reply to everything."""
    return "ok"


async def chat(served: Served, *texts: str, **fields: Any) -> Client:
    """Return a client of Ada that has said these texts."""
    client = Client(served, **ADA, **fields)
    for text in texts:
        await client.say(text)
    return client


async def test_early_message_is_edited_although_all_replies_are_equal() -> None:
    """More replies than are compared have the text of the one before it."""
    async with gateway(agree) as served:
        ada = await chat(served, *(f"q{number}" for number in range(20)))
        ada.history = ada.history[:2]
        await ada.say("edited")
        assert await logs(served) == {ada.session_id: ada.seen}


async def test_window_is_found_by_the_pair_that_ends_it_and_not_by_a_later_equal_reply() -> None:
    """A client that keeps its last two messages edits the last question but one."""
    async with gateway(agree) as served:
        ada = await chat(served, *(f"q{number}" for number in range(5)))
        window = Client(served, **ADA)
        window.history = ada.history[4:6]
        await window.say("edited")
        assert await logs(served) == {ada.session_id: [*ada.seen[:6], *window.seen[2:]]}


async def test_key_of_a_window_that_two_chats_end_with_is_answered_once() -> None:
    """Its turn is in the chat that was used last, so the other one is the only chat that still ends so."""
    async with gateway(agree) as served:
        older, newer = [await chat(served, opening, "next", "next") for opening in ("a", "b")]
        window = Client(served, **ADA)
        window.history = older.history[-4:]
        await window.say("bye", headers=KEY)
        number, again = len(served.upstream.requests), Client(served, **ADA)
        again.history = window.history[:-1]
        await again.send(headers=KEY)
        assert again.session_id == window.session_id == newer.session_id
        assert len(served.upstream.requests) == number


async def test_window_of_claude_code_is_found_behind_forty_others_that_opened_alike() -> None:
    async with apis(claude=agree) as served:
        names = [{"device_id": "d" * 64, "account_uuid": "ada", "session_id": f"w{number}"} for number in range(40)]
        windows = [Client(served, "messages", model=CLAUDE, metadata={"user_id": json.dumps(name)}) for name in names]
        for window in windows:
            await window.say("Run the tests.")
        opened = windows[0].session_id
        await windows[0].say("Again.")
        assert windows[0].session_id == opened


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "continued"])
async def test_request_that_waited_for_a_session_is_placed_again(deleted: bool) -> None:
    """The session was deleted, or continued in another way. Another session that it now continues has another system prompt.

    Headers that were sent meanwhile, to keep the connection, do not name the first one.
    """
    gate = Gate()
    async with gateway(holding(gate, "red"), "gateway: {keep_alive: 0.01}") as served:
        first = Client(served, **ADA)
        first.history = [{"role": "system", "content": "Be polite."}]
        await first.say("hi")
        second, other = Client(served, **ADA), Client(served, **ADA)
        second.history = [*first.history[1:], user("blue")]
        running = asyncio.create_task(first.say("red", status=404 if deleted else 200))
        await until(lambda: len(served.upstream.requests) == 2)
        body = second.make_body() | {"stream": True}
        waiting = asyncio.create_task(served.http.post(second.path, json=body))
        await served.until_waiting()
        await asyncio.sleep(0.05)
        if deleted:
            await served.http.delete(f"/v1/sessions/{first.session_id}?user_id=ada")
        other.history = [{"role": "system", "content": "Be rude."}]
        await other.say("hi")
        gate.open()
        _, answer = await asyncio.gather(running, waiting)
        *_, last, _ = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert json.loads(last[6:])["session_id"] == other.session_id
        assert "x-session-id" not in answer.headers
        assert prompt(served) == ["Be rude.", "hi", "re: hi", "blue"]


@pytest.mark.parametrize("before", [[], [user("q0"), assistant("a0")]], ids=["one turn", "two turns"])
async def test_history_with_nothing_in_common_keeps_the_calls_of_its_results(before: list[Row]) -> None:
    """Calls of tools are no reply after which everything is new: their question and their results would be torn apart."""
    async with gateway(reply_to) as served:
        await served.chat("hi")
        calls, result = assistant(None, tool_calls=[CALL]), {"role": "tool", "tool_call_id": "c1", "content": "found"}
        told = await served.chat([*before, user("q"), calls, result], tools=[TOOL])
        assert [one["code"] for one in told["session"]["warnings"]] == ["nothing_in_common"]
        assert served.sent["messages"][-3:] == [user("q"), calls, result]


async def ask_for_a_tool(served: Served) -> list[Row]:
    """Run a turn whose reply is a call; return its result."""
    told = await served.chat("q", tools=[TOOL])
    return [{"role": "tool", "tool_call_id": told["choices"][0]["message"]["tool_calls"][0]["id"], "content": "found"}]


async def test_results_that_have_a_reply_get_it_also_with_a_new_key() -> None:
    async with gateway([Reply(tool_calls=[("look", {})]), "done"]) as served:
        results = await ask_for_a_tool(served)
        for key in ("k1", "k2", "k2", "k1"):
            told = await served.chat(results, tools=[TOOL], headers={"idempotency-key": key})
            assert (told["status"], told["choices"][0]["message"]["content"]) == (200, "done")
        assert [row["role"] for row in await served.entries()] == ["user", "assistant", "tool", "assistant"]


async def test_known_result_after_a_new_one_is_stored_once() -> None:
    async with gateway([Reply(tool_calls=[("look", {}), ("look", {})]), "one", "both"]) as served:
        asked = await served.chat("q", tools=[TOOL])
        made = [one["id"] for one in asked["choices"][0]["message"]["tool_calls"]]
        first, second = [{"role": "tool", "tool_call_id": id_, "content": id_} for id_ in made]
        await served.chat([first], tools=[TOOL])
        told = await served.chat([second, first], tools=[TOOL])
        assert (told["status"], told["choices"][0]["message"]["content"]) == (200, "both")
        assert [row["content"] for row in await served.entries() if row["role"] == "tool"] == made
        assert (await served.chat([second, first | {"content": "other"}], tools=[TOOL]))["status"] == 409


@pytest.mark.parametrize("fails", [False, True])
async def test_result_of_a_call_that_has_the_id_of_a_call_of_the_server(fails: bool) -> None:
    """Some providers number the calls of each reply anew, and the client never received the second one."""

    def answer(body: Row) -> Any:
        name = {"q": "look", "other": "peek"}.get(body["messages"][-1]["content"])
        return Reply(tool_calls=[{**CALL, "function": {"name": name, "arguments": "{}"}}]) if name else "done"

    with ExitStack() as stack:

        async def peek() -> str:
            """Peek, and let the write of the result fail."""
            if fails:
                stack.enter_context(inject("before-commit", StoreUnavailable("no answer")))
            return "peeked"

        async with gateway(answer, tools=[peek]) as served:
            (result,) = await ask_for_a_tool(served)
            assert (await served.chat("other", tools=[TOOL]))["status"] == (503 if fails else 200)
            for _ in range(2):
                told = await served.chat([result], tools=[TOOL])
                assert (told["status"], served.sent["messages"][-1]["content"].count("found")) == (200, 1)
                assert served.sent["messages"][-1]["role"] == "user"
            told = await served.chat([result | {"tool_call_id": "c2"}], tools=[TOOL])
            assert told["status"] == 400


async def test_results_whose_reply_failed_do_not_get_the_reply_to_a_later_question() -> None:
    async with gateway([Reply(tool_calls=[("look", {})]), Reply(status=500), "You're welcome.", "done"]) as served:
        results = await ask_for_a_tool(served)
        assert (await served.chat(results, tools=[TOOL]))["status"] == 502
        await served.chat("thanks", tools=[TOOL])
        told = await served.chat(results, tools=[TOOL])
        assert told["choices"][0]["message"]["content"] == "done"


async def test_retired_branch_is_found_by_the_pair_that_ends_a_window() -> None:
    """The branch goes on with equal replies."""
    async with gateway(agree) as served:
        ada = await chat(served, *(f"q{number}" for number in range(5)))
        branch, ada.history = ada.history, ada.history[:2]
        await ada.say("edited")
        window = Client(served, **ADA)
        window.history = branch[4:6]
        await window.say("on")
        assert await logs(served) == {ada.session_id: [*(one["content"] for one in branch[:6]), *window.seen[2:]]}


@pytest.mark.parametrize("before", [0, 2])
async def test_retired_branch_is_found_by_the_part_of_its_last_reply(before: int) -> None:
    """The client has left out what was before it, also pictures."""
    async with gateway(["re: q0", "r1", Reply(text="one two three", cut_after=3), "edited", "done"]) as served:
        ada = Client(served, session_id="s")
        await ada.say("q0")
        tab = ada.copy()
        await ada.say("q1")
        picture = {"type": "image_url", "image_url": {"url": PIXEL}}
        await ada.say(user([{"type": "text", "text": "q2"}, picture]), status=502)
        await tab.say("q1, but")
        ada.history = [*[user("q1"), assistant("r1")][:before], user("q2"), assistant("one")]
        told = await ada.say("go on")
        assert prompt(served)[:4] == ["q0", "re: q0", "q1", "r1"]
        assert PIXEL in json.dumps(served.sent["messages"])
        assert (prompt(served)[-1], told["session"].get("warnings")) == ("go on", None)


async def test_key_of_another_chat_is_refused() -> None:
    """A key is one of its user's. Nothing of the second request is stored."""
    async with gateway(agree) as served:
        one, other = [await chat(served, opening) for opening in ("a", "b")]
        await one.say("more", headers=KEY)
        await other.say("more", status=422, headers=KEY)
        assert await logs(served) == {one.session_id: one.seen, other.session_id: other.seen[:2]}


@pytest.mark.parametrize("gone", ["rewound", "edited", "deleted", "erased", "user deleted"])
async def test_key_of_a_turn_that_is_gone_calls_no_model(gone: str) -> None:
    """With the same request; another one is still refused as such."""
    async with gateway(agree) as served:
        ada = await chat(served, "q0")
        await ada.say("pay", headers=KEY)
        body, path = ada.make_body(), f"/sessions/{ada.session_id}"
        body["messages"] = body["messages"][:-1]
        seq = (await served.entries(ada.session_id, "ada"))[-2]["seq"]
        if gone == "edited":
            ada.history = [*ada.history[:2], user("pay less")]
            await ada.send()
        else:
            way: Row = {
                "rewound": ("POST", f"{path}/rewind", {"at_turn": 0}),
                "deleted": ("DELETE", path, None),
                "erased": ("DELETE", f"{path}/messages/{seq}", None),
                "user deleted": ("DELETE", "/users/ada", None),
            }
            method, where, sent = way[gone]
            told = await served.http.request(
                method, f"/v1{where}", json=sent, params=None if gone == "user deleted" else {"user_id": "ada"}
            )
            assert told.status_code < 300, told.text
        calls = len(served.upstream.requests)
        for messages, status in ((body["messages"], 409), ([*body["messages"][:-1], user("pay more")], 422)):
            again = await served.http.post("/v1/chat/completions", json=body | {"messages": messages}, headers=KEY)
            assert (again.status_code, again.json()["error"]["code"]) == (
                status,
                "turn_gone" if status == 409 else "idempotency_conflict",
            )
        assert len(served.upstream.requests) == calls


async def test_key_is_known_for_a_week_after_its_session_is_gone() -> None:
    async with gateway(agree, "sessions: {ttl: 30d}") as served:
        ada = await chat(served, "q0")
        await ada.say("pay", headers=KEY)
        body = ada.make_body()
        body["messages"] = body["messages"][:-1]
        await served.http.delete(f"/v1/sessions/{ada.session_id}", params={"user_id": "ada"})
        for day, status in ((0, 409), (6, 409), (8, 200)):
            served.clock.now = served.clock.now if day == 0 else served.clock.now + (6 if day == 6 else 2) * 86_400_000
            await served.native.sweep()
            again = await served.http.post("/v1/chat/completions", json=body, headers=KEY)
            assert again.status_code == status


async def test_key_of_a_turn_that_another_device_overtook_continues_it() -> None:
    """The tool that ran for it does not run again, and nothing is stored twice."""
    async with gateway(["r0", Reply(status=500), "r2", "r1"]) as served:
        phone, laptop = Device(served, session_id="s", **ADA), Device(served, session_id="s", **ADA)
        await phone.say("q0")
        await phone.say("q1", status=502, headers=KEY)
        await laptop.say("q2")
        body = phone.make_body()
        for _ in range(2):
            told = await served.http.post("/v1/chat/completions", json=body, headers=KEY)
            assert told.json()["choices"][0]["message"]["content"] == "r1"
        assert prompt(served) == ["q0", "r0", "q2", "r2", "q1"]
        assert await logs(served) == {"s": ["q0", "r0", "q2", "r2", "q1", "r1"]}
        assert len(served.upstream.requests) == 4


@pytest.mark.parametrize("changed", [{"temperature": 0.5}, {"model": "other"}, {}])
async def test_retry_count_counts_only_with_the_same_parameters(changed: Row) -> None:
    async with gateway(agree) as served:
        body = {"messages": [user("q")], "session_id": "s", "model": "default", "temperature": 0.1, **ADA}
        for count, fields in enumerate((body, body | changed)):
            told = await served.http.post(
                "/v1/chat/completions", json=fields, headers={"x-stainless-retry-count": str(count)}
            )
            assert told.status_code == 200
        assert len(served.upstream.requests) == (2 if changed else 1)


async def test_retry_of_a_request_whose_reply_was_made_again_is_a_new_request() -> None:
    """Only a key that the client chose names a turn which is gone."""
    async with gateway(agree) as served:
        ada = await chat(served, "q0")
        ada.headers = {"x-stainless-retry-count": "0"}
        await ada.say("q1")
        ada.history.pop()
        await served.http.post(ada.path, json=ada.make_body() | {"temperature": 0.5})
        ada.headers = {"x-stainless-retry-count": "1"}
        assert (await ada.send())["session"]["reconciled"] == "regenerated"


async def test_later_messages_of_an_edit_keep_their_pictures() -> None:
    """The client edits the first question, and sends the second one without its picture."""
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    async with gateway(agree) as served:
        ada = await chat(served, "q0", session_id="s")
        await ada.say(user([{"type": "text", "text": "look"}, picture]))
        await ada.say("q2")
        ada.history[0], ada.history[2] = user("edited"), user("look")
        told = await ada.say("more")
        assert told["session"]["edited_at"] == 0
        sent = served.sent["messages"]
        assert (sent[0], sent[2]["content"][1], len(sent)) == (user("edited"), picture, 7)


async def test_results_are_checked_also_if_everything_in_the_request_is_new() -> None:
    """As by the id of a conversation: a known result is not stored again, another one or one without a call is refused."""
    async with gateway([Reply(tool_calls=[("look", {})]), "done"]) as served:
        results = await ask_for_a_tool(served)
        for _ in range(2):
            told = await served.chat(results, tools=[TOOL], session_mode="delta")
            assert told["choices"][0]["message"]["content"] == "done"
        for changes, status in (({"content": "other"}, 409), ({"tool_call_id": "unknown"}, 400)):
            told = await served.chat([results[0] | changes], tools=[TOOL], session_mode="delta")
            assert told["status"] == status
        assert [row["role"] for row in await served.entries()] == ["user", "assistant", "tool", "assistant"]
