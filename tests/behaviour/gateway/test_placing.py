"""Sequences of requests by real clients: which session each request continues, and which of its messages are new.

No user sees the words of another, nothing that a client leaves out is lost, and a repeated request happens once.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import CLAUDE, Served, apis, assistant, count_waiting, gateway, until, user
from tests.behaviour.kit.placing import (
    ADA,
    AGAIN,
    FIRST,
    KEY,
    SERVERS,
    ByResponse,
    Client,
    Device,
    codes,
    holding,
    logs,
    people,
    prompt,
    reply_to,
)
from tests.behaviour.kit.voice import CONTENTS

Row = dict[str, Any]
PASSWORD = "my password is hunter2"


def numbered(body: Row) -> str:
    """Return another reply each time: the question and the number of messages of the prompt."""
    return f"{len(body['messages'])}: {body['messages'][-1]['content']}"


def assert_separate(found: dict[str, list[Any]], clients: list[Client]) -> None:
    """Each client has a session of its own, with exactly what it believes."""
    assert len({client.session_id for client in clients}) == len(clients)
    assert found == {client.session_id: client.seen for client in clients}


async def talk(client: Client, count: int) -> None:
    for number in range(count):
        await client.say(f"q{number}")


# -- people without names ------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
async def test_p1_history_of_one_person_is_not_put_into_the_session_of_another(server: str) -> None:
    """Bob resends his history and adds a password. Alice, who began with the same words, goes on in her session."""
    async with people(server) as served:
        bob, alice = Client(served), Client(served)
        await bob.say("hi")
        await alice.say("hi")
        await bob.say(PASSWORD)
        assert prompt(served) == ["hi", "re: hi", PASSWORD]
        await Device(served, session_id=alice.session_id).say("what did I say?")
        assert prompt(served) == ["hi", "re: hi", "what did I say?"]


@pytest.mark.parametrize("server", SERVERS)
async def test_p1_session_of_a_request_without_a_name_is_not_listed(server: str) -> None:
    async with people(server) as served:
        bob = Client(served)
        await bob.say("hi")
        await bob.say("and now?")
        assert await logs(served) == {}


@pytest.mark.parametrize("server", SERVERS)
async def test_p8_retry_of_one_person_does_not_join_the_turn_of_another(server: str) -> None:
    """Two people behind one address send the same body, and the request of one says that it is a retry."""
    async with people(server) as served:
        alice, bob = Client(served), Client(served)
        await alice.say("hi", headers=FIRST)
        await bob.say("hi", headers=AGAIN)
        assert bob.session_id != alice.session_id
        for one, secret in ((bob, PASSWORD), (alice, "my card is 4111")):
            await Device(served, session_id=one.session_id).say(secret)
            assert prompt(served) == ["hi", "re: hi", secret]


# -- the same request again ------------------------------------------------------------------


async def test_p2_failed_continuation_of_a_response_is_stored_once() -> None:
    """Although the response will not be stored, which its attempts say."""
    async with gateway(["one", Reply(status=500), "two"]) as served:
        ada = ByResponse(served)
        await ada.say("1")
        await ada.say("2", status=502, store=False)
        await ada.send(store=False)
        assert await logs(served) == {ada.session_id: ["1", "one", "2", "two"]}
        assert prompt(served) == ["1", "one", "2"]


async def test_p3_retry_after_another_message_is_a_new_turn() -> None:
    """Its first attempt never arrived, and an equal request was answered before the last one."""
    async with gateway(numbered) as served:
        ada = Device(served, session_id="s", **ADA)
        await ada.say("next", headers=FIRST)
        await ada.say("skip one", headers=FIRST)
        await ada.say("next", headers=AGAIN)
        assert await logs(served) == {"s": ["next", "1: next", "skip one", "3: skip one", "next", "5: next"]}


@pytest.mark.parametrize(("api", "named"), [("chat", "session_id"), ("responses", "conversation")])
async def test_p4_delta_whose_reply_was_cut_is_stored_once(api: str, named: str) -> None:
    async with gateway(["re: a", Reply(text="one two three", cut_after=2), "one two three four"]) as served:
        made = {"id": "s"} if named == "session_id" else (await served.http.post("/v1/conversations", json={})).json()
        ada = Device(served, api, **{named: made["id"]})
        await ada.say("a")
        await ada.say("count", status=502)
        await ada.send()
        assert prompt(served) == ["a", "re: a", "count"]
        assert list((await logs(served)).values()) == [["a", "re: a", "count", "one two three four"]]


LOST = "one two three four"
MEANT_ANEW = [({}, {}), (FIRST, FIRST), (KEY, {})]


@pytest.mark.parametrize(("first", "again"), [*MEANT_ANEW, (KEY, KEY), (FIRST, AGAIN)])
async def test_p7_reply_that_was_lost_is_returned_only_to_a_retry(first: Row, again: Row) -> None:
    """The same words later are a new turn."""
    gate = Gate()
    async with gateway([Reply(text=LOST, hold=gate, hold_after=2), "anew"]) as served:
        ada = Device(served, session_id="s", **ADA)
        body = await ada.lose("go on", gate, heard="one ", headers=first)
        answer = await served.http.post(ada.path, json=body, headers=again)
        assert answer.status_code == 200
        is_new = again not in (KEY, AGAIN)
        assert await logs(served) == {"s": ["go on", LOST, *(["go on", "anew"] if is_new else [])]}
        assert ("anew" in answer.text) is is_new


async def test_key_that_is_new_is_a_new_turn_although_its_attempt_is_counted_as_a_retry() -> None:
    """The first attempt never arrived. An equal request with another key has been answered."""
    async with gateway(numbered) as served:
        ada = Device(served, session_id="s", **ADA)
        await ada.say("next", headers={"idempotency-key": "j"})
        await ada.say("next", headers={**KEY, **AGAIN})
        assert await logs(served) == {"s": ["next", "1: next", "next", "3: next"]}


async def test_r1_key_of_a_turn_that_was_rewound_is_gone() -> None:
    """No reply without a question is made."""
    async with gateway(reply_to) as served:
        ada = Device(served, session_id="s", **ADA)
        await ada.say("a")
        await ada.say("pay", headers=KEY)
        await served.rest.session("s", "ada").rewind(at_turn=0)
        ada.history = [user("pay")]
        assert (await ada.send(status=409, headers=KEY))["error"]["code"] == "turn_gone"
        assert await logs(served) == {"s": ["a", "re: a"]}
        assert len(served.upstream.requests) == 2


@pytest.mark.parametrize("opening", [(), ("hi",)], ids=["first turn", "second turn"])
async def test_r2_key_finds_its_turn_on_another_server_among_many_equal_openings(opening: tuple[str, ...]) -> None:
    async with gateway(reply_to, store="file") as one, gateway(["called again"], store=one.store) as two:
        ada, *others = [Client(one, **ADA) for _ in range(10)]
        for text in opening:
            await ada.say(text)
        before = await ada.say("pay", headers=KEY)
        for other in others:
            for text in (*opening, "pay"):
                await other.say(text)
        retry = Client(two, **ADA)
        retry.history = ada.history[:-1]
        again = await retry.send(headers=KEY)
        assert two.upstream.requests == []
        assert (again["id"], retry.session_id) == (before["id"], ada.session_id)


# -- which session ------------------------------------------------------------------


async def test_p5_chats_of_an_app_with_one_cache_key_are_separate() -> None:
    """Although the reply of one is a beginning of the reply of the other."""
    async with gateway(["Yes", "Yesterday it did.", "a", "b", "c"]) as served:
        one, two = [Client(served, "responses", prompt_cache_key="app", **ADA) for _ in range(2)]
        await one.say("Is it open?")
        opened = one.response_id
        await two.say("Did it rain?")
        await two.say("And today?")
        await one.say("Until when?")
        assert_separate(await logs(served), [one, two])
        by_id = ByResponse(served, **ADA)
        by_id.response_id = opened
        await by_id.say("Really?")
        assert prompt(served) == ["Is it open?", "Yes", "Really?"]


async def test_p6_regenerated_response_keeps_its_text_and_can_be_continued() -> None:
    """The continuation is a fork that ends with the response's own text."""
    async with gateway(["zero", "first", "second", "more"]) as served:
        by_id = ByResponse(served, **ADA)
        await by_id.say("0")
        await by_id.say("1")
        chat = Client(served, session_id=by_id.session_id, **ADA)
        chat.history = by_id.history[:-1]
        await chat.send()
        found = (await served.http.get(f"/v1/responses/{by_id.response_id}?user_id=ada")).json()
        assert (found["status"], "first" in str(found["output"])) == ("completed", True)
        await by_id.say("2")
        assert prompt(served) == ["0", "zero", "1", "first", "2"]
        assert by_id.session_id != chat.session_id
        assert (await logs(served))[chat.session_id] == ["0", "zero", "1", "second"]


@pytest.mark.parametrize("texts", [("red", "blue", "red", "green"), ("red",) * 4], ids=["different", "equal"])
async def test_p9_equal_chats_of_one_user_have_only_their_own_messages(texts: tuple[str, ...]) -> None:
    """They open at once, and each goes on in a session with exactly its messages."""
    gate = Gate()
    async with gateway(holding(gate, *texts)) as served:
        chats = [Client(served, **ADA) for _ in texts]
        await asyncio.gather(*(chat.say("hi") for chat in chats))
        asked = [asyncio.create_task(chat.say(text)) for chat, text in zip(chats, texts, strict=True)]
        await until(lambda: len(served.upstream.requests) + count_waiting(served.native) == 8)
        gate.open()
        await asyncio.gather(*asked)
        for chat in chats:
            await chat.say("and now?")
            assert prompt(served) == chat.seen[:-1]
        assert_separate(await logs(served), chats)


@pytest.mark.parametrize("overlapping", [False, True])
async def test_q1_tabs_of_one_user_have_branches_of_one_session(overlapping: bool) -> None:
    """The branch that was continued last is live, whichever requests overlapped."""
    gate = Gate()
    async with gateway(holding(gate, "left")) as served:
        one = Client(served, **ADA)
        await one.say("hi")
        two = Client(served, **ADA)
        two.history = list(one.history)
        left = asyncio.create_task(one.say("left"))
        await until(lambda: len(served.upstream.requests) == 2)
        if not overlapping:
            gate.open()
            await left
        right = asyncio.create_task(two.say("right"))
        await until(lambda: right.done() or count_waiting(served.native) or len(served.upstream.requests) == 3)
        gate.open()
        await asyncio.gather(left, right)
        for tab, text in ((one, "more left"), (two, "more right")):
            await tab.say(text)
            assert prompt(served) == tab.seen[:-1]
        assert await logs(served) == {one.session_id: two.seen}


async def test_g1_equal_openings_side_by_side_are_separate_sessions() -> None:
    gate = Gate()
    async with gateway(holding(gate, "hi")) as served:
        batch = [Client(served, **ADA) for _ in range(5)]
        asked = [asyncio.create_task(client.say("hi")) for client in batch]
        await until(lambda: len(served.upstream.requests) == 5)
        gate.open()
        await asyncio.gather(*asked)
        assert_separate(await logs(served), batch)


async def test_g2_one_greeting_before_different_questions_is_ten_sessions() -> None:
    async with gateway(reply_to) as served:
        batch = [Client(served, **ADA) for _ in range(10)]
        for number, client in enumerate(batch):
            client.history = [assistant("How can I help?")]
            await client.say(f"q{number}")
        for client in batch:
            await client.say("more")
            assert prompt(served) == client.seen[:-1]
        assert_separate(await logs(served), batch)


TITLE = "Analyze if this message indicates a new conversation topic. If it does, extract a 2-3 word title."


def work(body: Row) -> Any:
    """Call a tool for a question, and report its result."""
    last = body["messages"][-1]["content"]
    if isinstance(last, list) and last[0]["type"] == "tool_result":
        return f"found {last[0]['content']}"
    if TITLE in str(body.get("system")):
        return "Build"
    return Reply(tool_calls=[{"type": "tool_use", "id": f"toolu_{last}", "name": "look", "input": {}}])


def make_result(client: Client, text: str) -> Row:
    """Return the result of the tool call with which the client's history ends."""
    call = client.history[-1]["content"][0]
    return user([{"type": "tool_result", "tool_use_id": call["id"], "content": text}])


def open_claude_code(served: Served, window: str = "57a121ec", **fields: Any) -> Client:
    """Return a conversation of Claude Code, all of whose requests have one session id."""
    metadata = {"user_id": json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": window})}
    return Client(served, "messages", model=CLAUDE, metadata=metadata, tools=[LOOK], **fields)


LOOK = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


async def test_c1_subagents_of_claude_code_have_sessions_of_their_own() -> None:
    """Its calls and theirs are interleaved, and each prompt has only what its own conversation has."""
    async with apis(claude=work) as served:
        main, helper = open_claude_code(served), open_claude_code(served)
        await main.say("Build it.")
        await helper.say("Explore the tests.")
        for client in (main, helper):
            await client.say(make_result(client, f"by {client.session_id}"))
        await main.say("Thanks.")
        assert main.session_id != helper.session_id
        sent = served.claude.requests[-1].body["messages"]
        assert [one["role"] for one in sent] == ["user", "assistant"] * 2 + ["user"]
        assert "tests" not in str(sent)
        found = await logs(served)
        assert (len(found.pop(main.session_id)), len(found.pop(helper.session_id)), found) == (6, 4, {})


async def test_a5_windows_of_claude_code_do_not_get_the_results_of_each_other() -> None:
    """Both ask the same, and the upstream gives both calls the same id."""
    async with apis(claude=work) as served:
        windows = [open_claude_code(served, name) for name in ("x", "y")]
        for window in windows:
            await window.say("Run the tests.")
        opened = [window.session_id for window in windows]
        results = ("3 failed", "all passed")
        for window, text in zip(windows, results, strict=True):
            await window.say(make_result(window, text))
            other = results[1 - results.index(text)]
            assert other not in str(served.claude.requests[-1].body["messages"])
        assert [window.session_id for window in windows] == opened != opened[::-1]
        assert [len(log) for log in (await logs(served)).values()] == [4, 4]


async def test_c1_title_job_of_claude_code_is_not_listed() -> None:
    async with apis(claude=work) as served:
        main, job = open_claude_code(served), open_claude_code(served, system=TITLE)
        await main.say("Build it.")
        await job.say("Build it.")
        await main.say(make_result(main, "all"))
        assert job.session_id != main.session_id
        assert list(await logs(served)) == [main.session_id]


# -- what is new ------------------------------------------------------------------


async def test_p10_one_message_of_a_client_that_sent_transcripts_is_appended() -> None:
    async with gateway(reply_to) as served:
        ada = Client(served, session_id="s")
        await talk(ada, 3)
        device = Device(served, session_id="s")
        for messages in (["new"], ["q0", "newer"]):
            told = await device.say(*messages)
            assert (told["session"]["reconciled"], codes(told)) == ("delta", [])
        assert await logs(served) == {"s": [*ada.seen, *device.seen]}


async def test_d1_equal_messages_are_two_turns() -> None:
    async with gateway(numbered) as served:
        ada = Device(served, session_id="s")
        await ada.say("yes")
        await ada.say("yes")
        assert await logs(served) == {"s": ["yes", "1: yes", "yes", "3: yes"]}
        assert prompt(served) == ["yes", "1: yes", "yes"]


@pytest.mark.parametrize("greeting", ["Welcome!", "Hello again!"])
async def test_n1_history_with_nothing_in_common_is_appended(greeting: str) -> None:
    """But a greeting, which says nothing about what the conversation is."""
    async with gateway(reply_to) as served:
        ada = Client(served, session_id="s")
        ada.history = [assistant("Welcome!")]
        await talk(ada, 3)
        other = Client(served, session_id="s")
        other.history = [assistant(greeting), user("x"), assistant("y")]
        told = await other.say("z")
        assert await logs(served) == {"s": [*ada.seen, "z", "re: z"]}
        assert codes(told) == ["nothing_in_common"]


async def test_h1_first_and_last_messages_by_session_id_retire_nothing() -> None:
    async with gateway(reply_to) as served:
        ada = Client(served, keeps=lambda history: [history[0], *history[1:][-5:]], session_id="s")
        await talk(ada, 7)
        assert await logs(served) == {"s": ada.seen}


async def test_middle_messages_left_out_before_a_reply_that_was_cut_stay() -> None:
    """The part of it that the client has is the anchor, and not an earlier complete reply."""
    async with gateway(["re: 0", "re: 1", "re: 2", Reply(text="one two three", cut_after=3), "re: 4"]) as served:
        ada = Client(served, session_id="s")
        await talk(ada, 3)
        await ada.say("q3", status=502)
        ada.history = [*ada.history[2:4], user("q3"), assistant("one")]
        await ada.say("q4")
        assert [one for one in prompt(served) if one[0] == "q"] == ["q0", "q1", "q2", "q3", "q4"]


async def test_middle_messages_stay_if_the_last_reply_that_the_client_has_in_part_is_lost() -> None:
    """The server could not store it, and the reply before it was cut, too."""
    async with gateway(["re: 0", "re: 1", Reply(text="one two three", cut_after=3), "re: 3"]) as served:
        ada = Client(served, session_id="s")
        await talk(ada, 2)
        await ada.say("q2", status=502)
        ada.history = [*ada.history[:2], user("q2"), assistant("one"), user("q3"), assistant("lost")]
        await ada.say("q4")
        assert [one for one in prompt(served) if one[0] == "q"] == ["q0", "q1", "q2", "q3", "q4"]


async def test_h2_last_five_messages_of_a_user_are_recognised() -> None:
    async with gateway(reply_to) as served:
        ada = Client(served, keeps=lambda history: history[-5:], **ADA)
        await talk(ada, 7)
        assert await logs(served) == {ada.session_id: ada.seen}


async def look() -> str:
    """Look."""
    return "seen"


def look_at_q1(body: Row) -> Any:
    last = body["messages"][-1]
    return Reply(tool_calls=[("look", {})]) if last["content"] == "q1" else f"re: {last['content']}"


@pytest.mark.parametrize("fields", [ADA, {"session_id": "s"}], ids=["named user", "named session"])
@pytest.mark.parametrize("keeps_rest", [False, True], ids=["E1", "E2"])
async def test_e1_and_e2_edit_of_the_fifth_message_of_twenty(fields: Row, keeps_rest: bool) -> None:
    """The rest is as the client sends it. Tools before the edit stay, although the client never had them."""
    async with gateway(look_at_q1, tools=[look]) as served:
        ada = Client(served, **fields)
        await talk(ada, 10)
        session_id = ada.session_id
        assert len(ada.history) == 20
        if keeps_rest:
            ada.history[4] = user("Q2")
            told = await ada.say("new")
        else:
            ada.history = ada.history[:4]
            told = await ada.say("Q2")
        assert (told["session"]["reconciled"], told["session"]["edited_at"]) == ("edited", 6)
        assert await logs(served) == {session_id: [*ada.seen[:3], None, "seen", *ada.seen[3:]]}


@pytest.mark.parametrize("opening", [(), ("hi",)], ids=["first turn", "second turn"])
async def test_s1_client_that_stopped_a_reply_continues_with_what_it_saw(opening: tuple[str, ...]) -> None:
    gate = Gate()
    async with gateway([*["re: hi"] * len(opening), Reply(text=LOST, hold=gate, hold_after=2), "done"]) as served:
        ada = Client(served, **ADA)
        for text in opening:
            await ada.say(text)
        await ada.lose("count", gate, heard="one ")
        first = ada.session_id
        told = await ada.say("go on")
        begun = ["hi", "re: hi"] if opening else []
        assert await logs(served) == {first: [*begun, "count", LOST, "go on", "done"]}
        assert told["session"]["reconciled"] == "continued"


async def test_v1_records_and_requests_without_messages_call_the_model_on_the_log() -> None:
    """Also if the last record is of the assistant. What the agent says by itself is not replaced by the next message."""
    async with gateway(["one", "two", "three"]) as served:
        said = [record["content"] for record in CONTENTS]
        answer = await served.http.post("/v1/chat/completions", json={"session_id": "s", "contents": CONTENTS})
        assert (answer.status_code, prompt(served)) == (200, said)
        assert (await served.chat([]))["session"]["reconciled"] == "replayed"
        assert prompt(served) == [*said, "one"]
        await served.rest.session().speak("Still there?", source="silence")
        await served.chat("Yes.")
        assert await logs(served) == {"s": [*said, "one", "two", "Still there?", "Yes.", "three"]}


async def test_v1_silence_message_that_a_client_sends_is_appended() -> None:
    async with gateway(reply_to) as served:
        await served.chat("a")
        await served.chat([assistant("Still there?", metadata={"source": "silence"})])
        assert (await logs(served))["s"][:3] == ["a", "re: a", "Still there?"]
