"""The thirty sequences of placing.md: what a user expects of requests without names, of devices, points and keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit import (
    CLAUDE,
    Process,
    Served,
    answer_of,
    apis,
    assistant,
    bearer,
    calls,
    count_runs,
    count_waiting,
    gateway,
    result,
    start_tool_server,
    system,
    texts,
    until,
    user,
)
from tests.behaviour.kit.placing import (
    ADA,
    AGAIN,
    DAY,
    FIRST,
    KEY,
    SERVERS,
    ByResponse,
    Client,
    Device,
    at_once,
    codes,
    counting,
    logs,
    people,
    prompt,
    prompts,
    reply_to,
    retired,
)

Row = dict[str, Any]


async def talk(client: Client, count: int, start: int = 1) -> None:
    for number in range(start, start + count):
        await client.say(f"q{number}")


def relation(told: Row) -> str:
    return str(told["session"]["reconciled"])


# -- named or scoped clients -----------------------------------------------------------------------


async def test_a1_double_click_is_one_message() -> None:
    """The client goes on with the reply to its first click."""
    gate = Gate()
    async with gateway(counting(gate, "book it")) as served:
        one = Client(served, **ADA)
        await one.say("hi")
        two = one.copy()
        first = asyncio.create_task(one.say("book it"))
        await until(lambda: len(served.upstream.requests) == 2)
        second = asyncio.create_task(two.say("book it"))
        await until(lambda: len(served.upstream.requests) == 3 or count_waiting(served.native) == 1)
        gate.open()
        await at_once(first, second)
        await one.say("thanks")
        assert prompt(served) == one.seen[:-1]
        assert await logs(served) == {one.session_id: one.seen}
        assert set(await retired(one)) >= set(two.seen) - set(one.seen)


def look_at(question: str) -> Any:
    """Return a model that calls the server's tool for a question."""

    def answer(body: Row) -> Any:
        is_asked = body["messages"][-1]["content"] == question
        return Reply(tool_calls=[("look", {})]) if is_asked else reply_to(body)

    return answer


async def look() -> str:
    """Look."""
    return "seen"


async def test_a2_first_version_of_an_edited_conversation_goes_on() -> None:
    async with gateway(look_at("q2"), tools=[look]) as served:
        ada = Client(served, **ADA)
        await talk(ada, 3)
        first = ada.session_id
        edited = Client(served, **ADA)
        await edited.say("q1, but")
        assert relation(await ada.say("go on")) == "continued"
        assert ada.session_id == first != edited.session_id
        assert prompt(served) == ["q1", "re: q1", "q2", None, "seen", "re: seen", "q3", "re: q3", "go on"]
        assert await retired(ada) == []


async def test_a3_earlier_one_of_three_replies_is_continued() -> None:
    async with gateway(counting()) as served:
        ada = Client(served, keeps=lambda history: [system("Be brief."), *history], session_id="s", **ADA)
        await ada.say("older")
        await ada.say("q1")
        told = ada.history.pop()
        for _ in range(2):
            assert relation(await ada.send()) == "regenerated"
            ada.history.pop()
        ada.history.append(told)
        await ada.say("more")
        seen = ["older", "1. older", "q1", "2. q1", "more", "5. more"]
        assert await logs(served) == {"s": seen}
        assert prompt(served) == ["Be brief.", *seen[:-1]]
        assert {"3. q1", "4. q1"} <= set(await retired(ada))


async def test_a4_conversation_after_a_summary_of_claude_code_is_a_session_of_its_own() -> None:
    async with apis(claude=work) as served:
        served.http.headers["x-api-key"] = await served.create_key(user_id="ada")
        main, helper = open_claude_code(served, "X"), open_claude_code(served, "X")
        for client, count in ((helper, 1), (main, 7)):
            for number in range(count):
                await client.say(f"step {number}")
                await client.say(make_result(client, "done"))
        await main.say("Your task is to create a detailed summary of the conversation so far.")
        await main.say(make_result(main, "summary"))
        before = await logs(served)
        after = open_claude_code(served, "X")
        await after.say("This session is being continued. Summary: steps 0 to 6 are done.", "next step")
        new = after.session_id
        for number in range(3):
            await after.say(make_result(after, f"{number}"))
            await after.say(f"and step {number}")
            assert after.session_id == new
        found = await logs(served)
        assert {main.session_id: found.pop(main.session_id), helper.session_id: found.pop(helper.session_id)} == before
        assert await retired(main) == []
        assert list(found) == [new]
        assert len(found[new]) == len(after.seen)


def work(body: Row) -> Any:
    """Call a tool for a question, with the same id each time."""
    last = body["messages"][-1]["content"]
    if isinstance(last, list) and last[-1]["type"] == "tool_result":
        return "found"
    return Reply(tool_calls=[{"type": "tool_use", "id": "call_0", "name": "look", "input": {}}])


def make_result(client: Client, text: str) -> Row:
    """Return the result of the tool call with which the client's history ends."""
    last = client.history[-1]
    if "tool_calls" in last:
        return result(last["tool_calls"][0]["id"], text)
    call = last["content"][0]
    return user([{"type": "tool_result", "tool_use_id": call["id"], "content": text}])


def open_claude_code(served: Served, session: str) -> Client:
    """Return a conversation of Claude Code, whose requests have the id of a session in the metadata and a header."""
    metadata = {"user_id": f"user_{'d' * 64}_account_ada_session_{session}"}
    made = Client(served, "messages", model=CLAUDE, metadata=metadata, tools=[LOOK])
    made.headers, made.owner = {"x-claude-code-session-id": session}, "ada"
    return made


LOOK = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


def open_window(served: Served, _: str) -> Client:
    """Return a conversation of a client that names no session."""
    return Client(served, tools=[CLIENT_TOOL], **ADA)


@pytest.mark.parametrize("open_client", [open_claude_code, open_window])
async def test_a5_equal_calls_of_two_windows_have_their_own_results(open_client: Any) -> None:
    """Although all else in both is equal, the replies too."""
    async with apis(call_0, claude=work) as served:
        windows, results = [open_client(served, name) for name in "XY"], ["3 failed", "all passed"]
        await at_once(*(window.say("run the tests") for window in windows))
        await at_once(*(one.say(make_result(one, text)) for one, text in zip(windows, results, strict=True)))
        for window, own, other in zip(windows, results, reversed(results), strict=True):
            await window.say("go on")
            sent = str(served.models[window.fields["model"]].requests[-1].body["messages"])
            assert (sent.count(f"'{own}'"), other in sent) == (1, False)
        found = await logs(served)
        assert len(found) == 2
        for window, own in zip(windows, results, strict=True):
            assert [text for text in found[window.session_id] if text in results] == [own]


def call_0(body: Row) -> Any:
    """Call the client's tool for a question, with the same id each time."""
    is_asked = body["messages"][-1]["role"] == "user"
    return Reply(tool_calls=calls(("call_0", "look", {}))["tool_calls"]) if is_asked else "found"


ROUND = ["user", "assistant", "tool"]
CODEX_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def look_for_client(body: Row) -> Any:
    """Call the client's tool for each question."""
    last = body["messages"][-1]
    return reply_to(body) if last["role"] == "tool" else Reply(tool_calls=[("look", {})])


async def test_a6_question_of_codex_is_edited_with_other_instructions_and_another_model() -> None:
    async with gateway(look_for_client, models={"other": (ScriptedUpstream(look_for_client), {})}) as served:
        served.http.headers.update(bearer(await served.create_key(user_id="ada")))
        ada = Client(served, "responses", tools=[CODEX_TOOL], instructions="Old.", user="ada")
        ada.headers = {"session_id": "codex-1"}

        async def ask(text: str) -> Row:
            """Return the answer to the question; the client runs the tool."""
            told = await ada.say(text)
            call = ada.history[-1]["call_id"]
            await ada.say({"type": "function_call_output", "call_id": call, "output": f"result {text}"})
            return told

        for number in range(1, 6):
            await ask(f"q{number}")
        first = ada.session_id
        before = (await logs(served))[first]
        ada.history = ada.history[: ada.history.index(user("q3"))]
        ada.fields |= {"model": "other", "instructions": "New."}
        assert relation(await ask("instead")) == "edited"
        sent = served.models["other"].requests[-1].body["messages"]
        assert [one["role"] for one in sent] == ["system", *[*ROUND, "assistant"] * 2, *ROUND]
        assert sent[0]["content"] == "New."
        for text in ("later", "last"):
            assert relation(await ask(text)) == "continued"
        assert ada.session_id == first
        found = await logs(served)
        assert list(found) == [first]
        assert found[first][:8] == before[:8]
        assert not {"q3", "q4", "q5"} & set(found[first])
        assert await retired(ada) == before[8:]


TASKS = [
    f"### Task:\n{task}\n### Chat History:\n<chat_history>\nUSER: plan my trip\nASSISTANT: re\n</chat_history>"
    for task in (
        "Generate a concise, 3-5 word title with an emoji summarizing the chat history.",
        "Generate 1-3 broad tags categorizing the main themes of the chat history.",
        "Suggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next.",
    )
]


async def test_a7_jobs_of_a_chat_interface_are_no_part_of_its_chat() -> None:
    names = "gateway: {user_headers: [X-OpenWebUI-User-Id], session_headers: [X-OpenWebUI-Chat-Id]}"
    async with gateway(reply_to, names, "search: {enabled: true}", "sessions: {ttl: 30d}") as served:
        served.http.headers["x-openwebui-user-id"] = "ada"
        chat, *jobs, other = [Client(served) for _ in range(5)]
        for client in (chat, *jobs):
            client.headers = {"x-openwebui-chat-id": "chat-1"}
        other.headers = {"x-openwebui-chat-id": "chat-2"}
        chat.fields["user"] = other.fields["user"] = "ada"
        await chat.say("plan my trip to Oslo")
        await at_once(chat.say("by train"), *(job.say(task) for job, task in zip(jobs, TASKS, strict=True)))
        assert await logs(served) == {chat.session_id: chat.seen}
        assert sorted(one for one in prompts(served) if "### Task" in one[-1]) == sorted([task] for task in TASKS)
        served.clock.now += 7 * DAY
        hits = await served.rest.search("trip", user="ada")
        assert {hit["session_id"] for hit in hits} == {chat.session_id}
        await other.say("Which trip did I plan?")
        assert "### Task" not in str(prompt(served))
        assert str(prompt(served)).count('"text":"plan my trip to Oslo"') == 1


async def test_a8_device_that_goes_on_from_an_older_place_retires_what_it_did_not_know() -> None:
    """Its request has the bytes of an edit, so the phone's next prompt lacks the phone's last turn, which nothing deletes."""
    async with gateway(reply_to) as served:
        phone, laptop = Device(served, session_id="s", **ADA), Client(served, **ADA)
        await phone.say("1")
        laptop.history = list(phone.history)
        await laptop.say("2")
        await phone.say("3")
        await laptop.say("4")
        assert prompt(served) == laptop.seen[:-1]
        await phone.say("5")
        assert laptop.session_id == "s"
        kept = texts(await served.entries("s", "ada", retired=True))
        assert {"3", "re: 3", "4", "re: 4", "5"} < set(kept)
        assert prompt(served) == ["1", "re: 1", "2", "re: 2", "4", "re: 4", "5"]
        assert list(await logs(served)) == ["s"]


async def test_a9_classifications_with_invented_examples_are_independent() -> None:
    gate = Gate()
    async with gateway(lambda _: Reply(text="positive", hold=gate)) as served:
        served.http.headers.update(bearer(await served.create_key(user_id="ada")))
        examples = [user("classify: good"), assistant("positive"), user("classify: bad"), assistant("negative")]
        batch = [Client(served, user="ada") for _ in range(100)]
        answers = []
        for begin in range(0, 100, 10):
            for client in batch:
                client.history = list(examples)
            asked = [
                asyncio.create_task(one.say(f"classify: {begin + at}"))
                for at, one in enumerate(batch[begin : begin + 10])
            ]
            await until(lambda: len(served.upstream.requests) >= begin + 10)  # noqa: B023
            gate.open()
            answers += await at_once(*asked)
        assert all(codes(told) == [] for told in answers)
        asked_for = [f"classify: {number}" for number in range(100)]
        assert sorted(sent[-1] for sent in prompts(served)) == sorted(asked_for)
        assert all(sent[:-1] == [one["content"] for one in examples] for sent in prompts(served))
        assert all([await retired(client) == [] for client in batch])
        assert len({client.session_id for client in batch}) == 100


async def test_a10_window_that_fits_two_chats_continues_the_newer_one() -> None:
    async with gateway(lambda _: "ok", "sessions: {ttl: 30d}") as served:
        older, newer = [Client(served, keeps=lambda history: history[-5:], **ADA) for _ in range(2)]
        for client, text in ((older, "old"), (newer, "new")):
            for said in (text, "next", "next"):
                await client.say(said)
            served.clock.now += DAY
        assert older.session_id != newer.session_id
        chats = {older.session_id: older.seen, newer.session_id: newer.seen}
        for _ in range(2):
            await older.say("next")
            assert older.session_id == newer.session_id
            assert "old" not in prompt(served)
            chats[newer.session_id] = [*chats[newer.session_id], "next", "ok"]
            assert await logs(served) == chats
        assert await retired(newer) == []


# -- whole histories without names -----------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
async def test_b1_short_keys_of_people_without_names_do_not_count(server: str) -> None:
    async with people(server) as served:
        alice, bob = Client(served), Client(served)
        for turn, texts in ((1, ("hi", "hi")), (2, ("my pin is 1234", "my pin is 9876"))):
            key = {"idempotency-key": f"turn-{turn}"}
            told = await at_once(*(one.say(text, headers=key) for one, text in zip((alice, bob), texts, strict=True)))
            assert [codes(one) for one in told] == [["short_idempotency_key"]] * 2
        assert alice.seen == ["hi", "re: hi", "my pin is 1234", "re: my pin is 1234"]
        assert bob.seen == ["hi", "re: hi", "my pin is 9876", "re: my pin is 9876"]
        assert len(served.upstream.requests) == 4


@pytest.mark.parametrize("server", SERVERS)
async def test_b2_requests_without_names_evict_nothing_and_end_after_a_day(server: str) -> None:
    async with people(server, reply_to, "sessions: {ttl: 30d, max_sessions: 3}") as served:
        chats = [Client(served, **ADA) for _ in range(2)]
        voice = Device(served, session_id="call-7")
        for client in (*chats, voice):
            await client.say(f"I am {client.fields}")
        kept = {client.session_id: client.seen for client in (*chats, voice)}
        strangers = [Client(served) for _ in range(50)]
        for number, stranger in enumerate(strangers):
            await stranger.say(f"secret {number}")
        await served.native.sweep()
        assert await logs(served) == kept
        again = Device(served, session_id=strangers[7].session_id)
        await again.say("same day")
        assert prompt(served) == ["secret 7", "re: secret 7", "same day"]
        served.clock.now += 2 * DAY
        await served.native.sweep()
        await again.say("two days later")
        assert prompt(served) == ["two days later"]
        assert kept.items() <= (await logs(served)).items()


async def test_b3_deletion_of_a_client_counts_only_in_a_transcript() -> None:
    async with gateway(reply_to) as served:
        one = Client(served)
        await talk(one, 4)
        whole = one.seen
        del one.history[2:4]
        await one.say("q5")
        assert await logs(served) == {one.session_id: [*whole, "q5", "re: q5"]}
        told = await one.say("q6", session_mode="transcript")
        assert prompt(served) == one.seen[:-1]
        assert await logs(served) == {one.session_id: one.seen}
        assert {"q2", "re: q2"} <= set(await retired(one))
        assert told["session_id"] == one.session_id


async def test_b4_message_after_a_pair_that_occurs_three_times_is_appended_once() -> None:
    async with gateway(lambda body: "ok" if body["messages"][-1]["content"] == "status?" else reply_to(body)) as served:
        one = Client(served)
        for number in range(1, 10):
            await one.say("status?" if number in (2, 5, 9) else f"q{number}")
        whole, last = one.seen, Client(served, keeps=lambda history: history[-3:])
        last.history = list(one.history)
        for _ in range(2):
            await last.say("stop")
            assert await logs(served) == {one.session_id: [*whole, "stop", "re: stop"]}
            last.history = list(one.history)
        assert set(await retired(last)) <= {"re: stop"}
        assert last.session_id == one.session_id


async def test_b5_summaries_in_front_of_the_last_messages_are_not_stored() -> None:
    async with gateway(reply_to) as served:
        one = Client(served)
        await talk(one, 19)
        said = [*one.seen]
        for number in range(20, 31):
            summary = f"Summary so far: {number // 25}"
            front = [system(f"It is {number} o'clock."), user(summary), assistant("Understood.")]
            one.keeps = lambda history, front=front: [*front, *history[-5:]]
            told = await one.say(f"q{number}")
            said += [f"q{number}", f"re: q{number}"]
            assert (codes(told), prompt(served)[0]) == ([], f"It is {number} o'clock.")
        assert await logs(served) == {one.session_id: said}
        assert await retired(one) == []


async def test_b6_chats_with_one_greeting_and_one_first_message_stay_separate() -> None:
    async with gateway(reply_to) as served:
        one, two, three = chats = [Client(served) for _ in range(3)]
        for chat in chats:
            chat.history = [assistant("Hello, how can I help?")]
            await chat.say("hi")
        for chat, text in ((two, "red"), (one, "blue")):
            await chat.say(text)
            assert prompt(served) == chat.seen[:-1]
        four = three.copy()
        four.history.pop()
        await four.send()
        await one.say("and now?")
        assert prompt(served) == one.seen[:-1]
        assert sorted((await logs(served)).values()) == sorted(chat.seen for chat in (one, two, three, four))
        assert four.session_id not in {chat.session_id for chat in chats}


@pytest.mark.parametrize("server", SERVERS)
async def test_b7_pasted_transcript_shows_nothing_of_its_author(server: str) -> None:
    def answer(body: Row) -> Any:
        return Reply(tool_calls=[("find_home", {})]) if body["messages"][-1]["content"] == "Find it." else "Done."

    async def find_home() -> str:
        """Find it."""
        return "12 Elm Street"

    async with people(server, answer, tools=[find_home]) as served:
        alice = Client(served)
        await alice.say("hi")
        await alice.say("Find it.")
        before = await served.entries(alice.session_id, retired=True)
        for more in ({}, {"session_match": "on"}, {"user": "default"}, {"session_match": "on", "user": "default"}):
            bob = Client(served, **more)
            bob.history = list(alice.history)
            told = await bob.say("where do I live?")
            assert prompt(served) == bob.seen[:-1]
            assert "Elm" not in str((told, served.sent))
            assert bob.session_id != alice.session_id
        assert await served.entries(alice.session_id, retired=True) == before


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
OTHER_PIXEL = PIXEL.replace("+A8AAQUBAScY42Y", "+M8AAQUBAScY42Y")


def with_picture(text: str, url: str) -> Row:
    return user([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}])


async def test_b8_picture_stays_until_the_client_brings_another_one() -> None:
    async with gateway(lambda body: f"{len(body['messages'])}") as served:
        one = Client(served, session_id="s")
        one.history = [with_picture("what is this?", PIXEL)]
        await one.send()
        one.history[0] = user("what is this?")
        assert relation(await one.say("2")) == "continued"
        assert PIXEL in str(served.sent["messages"][0])
        one.history = [user("what is that?"), one.history[1]]
        assert relation(await one.say("2")) == "edited"
        assert (PIXEL in str(served.sent["messages"][0]), len(served.sent["messages"])) == (True, 3)
        one.history = [with_picture("what is that?", OTHER_PIXEL), one.history[1]]
        assert relation(await one.say("2")) == "edited"
        assert OTHER_PIXEL in str(served.sent)
        assert PIXEL not in str(served.sent)
        rows = await served.entries("s", retired=True)
        assert len({row["seq"] for row in rows if row["role"] == "user" and "image" in str(row["content"])}) == 3
        assert len(await served.entries("s")) == 4


async def test_b8_edited_first_message_alone_is_a_delta() -> None:
    """Without a reply, nobody can know that it is an edit, unless the client says that it sends everything."""
    async with gateway(reply_to) as served:
        for session_id, mode, kept in (("s", "auto", 4), ("t", "transcript", 2)):
            one = Client(served, session_id=session_id, session_mode=mode)
            one.history = [with_picture("what is this?", PIXEL)]
            await one.send()
            one.history = [system("Be brief."), user("what is that?")]
            await one.send()
            assert (PIXEL in str(served.sent["messages"])) is (mode == "auto")
            assert len(await served.entries(session_id)) == kept


CLIENT_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def call_for(question: str, *ids: str) -> Any:
    """Return a model that calls the client's tool for a question."""
    made = calls(*((one, "look", {}) for one in ids))["tool_calls"]
    return lambda body: Reply(tool_calls=made) if body["messages"][-1]["content"] == question else reply_to(body)


async def test_b9_late_result_of_a_call_is_put_where_it_belongs() -> None:
    model, gate = call_for("q", "c1", "c2"), Gate()

    def answer(body: Row) -> Any:
        is_first = body["messages"][-1]["role"] == "tool"
        return Reply(text="two results", hold=gate) if is_first else model(body)

    async with gateway(answer) as served:
        one = Client(served, tools=[CLIENT_TOOL])
        await one.say("q")
        asked = one.history
        one.history = [*asked, result("c1", "r1")]
        stopped = asyncio.create_task(one.send())
        await until(lambda: len(served.upstream.requests) == 2)
        stopped.cancel()
        await served.upstream.until(lambda: served.upstream.disconnects)
        await one.say("forget it, what is 2+2?")
        sent = served.sent["messages"]
        assert [one["tool_call_id"] for one in sent if one["role"] == "tool"] == ["c1", "c2"]
        reply = one.history[-2:]
        one.history = [*asked, result("c1", "r1"), result("c2", "r2"), *reply]
        await one.say("ok")
        (log,) = (await logs(served)).values()
        assert log.count("r1") == 1
        assert [text for text in log if text not in ("r1", "r2")] == [
            "q",
            None,
            "forget it, what is 2+2?",
            "re: forget it, what is 2+2?",
            "ok",
            "re: ok",
        ]
        assert await retired(one) == []


async def test_b10_question_that_is_asked_again_and_a_regeneration_are_told_apart() -> None:
    async with gateway(counting()) as served:
        one = Client(served)
        await one.say("q")
        await one.say("q")
        assert await logs(served) == {one.session_id: ["q", "1. q", "q", "2. q"]}
        one.history.pop()
        assert relation(await one.send()) == "regenerated"
        assert await logs(served) == {one.session_id: ["q", "1. q", "q", "3. q"]}
        await one.say("q")
        assert await logs(served) == {one.session_id: ["q", "1. q", "q", "3. q", "q", "4. q"]}
        assert await retired(one) == ["2. q"]


# -- retries, points and devices -------------------------------------------------------------------


async def test_c1_key_of_a_failed_turn_keeps_its_request() -> None:
    async with gateway([Reply(status=500), "paid 10"]) as served:
        device = Device(served, session_id="s")
        await device.say("pay 10", status=502, headers=KEY)
        other = Device(served, session_id="s")
        await other.say("pay 100", status=422, headers=KEY)
        assert await logs(served) == {"s": ["pay 10"]}
        await device.send(headers=KEY)
        assert await logs(served) == {"s": ["pay 10", "paid 10"]}


async def test_c2_key_of_a_reply_that_was_regenerated_is_gone() -> None:
    async with gateway(counting()) as served:
        worker = Device(served, session_id="s")
        await worker.say("hi")
        await worker.say("draft a letter", headers=KEY)
        window = Client(served, session_id="s")
        window.history = worker.history[:-1]
        await window.send()
        before = await served.entries(retired=True)
        worker.history.pop()
        assert (await worker.send(status=409, headers=KEY))["error"]["code"] == "turn_gone"
        assert len(served.upstream.requests) == 3
        assert await served.entries(retired=True) == before
        assert await logs(served) == {"s": window.seen}


async def test_c3_retry_of_a_turn_that_was_rewound_is_a_new_turn() -> None:
    gate = Gate()
    async with gateway(["re: a", Reply(text="one two three four", hold=gate, hold_after=2), "anew"]) as served:
        device = Device(served, session_id="s", **ADA)
        await device.say("a", headers=FIRST)
        body = await device.lose("b", gate, heard="one ", headers=FIRST)
        await served.rest.session("s", "ada").rewind(at_turn=0)
        answer = await served.http.post(device.path, json=body, headers=AGAIN)
        again = await served.http.post(device.path, json=body, headers=AGAIN)
        assert ("anew" in answer.text, "anew" in again.text) == (True, True)
        assert await logs(served) == {"s": ["a", "re: a", "b", "anew"]}


async def test_c4_message_after_a_lost_answer_does_not_run_the_tool_again() -> None:
    gate, booked = Gate(), []

    def book() -> str:
        """Book it."""
        booked.append(1)
        return "booked"

    script = ["re: hi", Reply(tool_calls=[("book", {})]), Reply(text="It is done.", hold=gate, hold_after=2), "Yes?"]
    async with gateway(script, tools=[book]) as served:
        ada = Client(served, **ADA)
        await ada.say("hi")
        await ada.lose("book it", gate, heard="")
        first = ada.session_id
        ada.history.pop()
        await ada.say("hello?")
        sent = prompt(served)
        assert (sent.count("book it"), "booked" in sent, sent[-1], len(booked)) == (1, True, "hello?", 1)
        found = await logs(served)
        assert list(found) == [first] == [ada.session_id]
        assert (found[first].count("book it"), found[first].count("hello?"), found[first][-1]) == (1, 1, "Yes?")


async def test_c5_branches_after_responses_have_their_own_messages() -> None:
    async with gateway(counting()) as served:
        main = ByResponse(served)
        await main.say("one")
        fork, third = main.copy(), main.copy()
        await main.say("two")
        await fork.say("other")
        stored = {client.response_id: client.seen[-1] for client in (third, main, fork)}
        for client, text in ((main, "three"), (fork, "more"), (third, "again")):
            await client.say(text)
            assert prompt(served) == client.seen[:-1]
        assert await logs(served) == {client.session_id: client.seen for client in (main, fork, third)}
        rows = {row["id"]: row["metadata"] for row in await served.rest.sessions()}
        assert len(rows) == 3
        for client in (fork, third):
            assert rows[client.session_id]["forked_from"]["id"] == main.session_id
        for response, text in stored.items():
            found = (await served.http.get(f"/v1/responses/{response}")).json()
            assert (found["status"], found["output"][0]["content"][0]["text"]) == ("completed", text)


async def test_c6_requests_after_a_running_response_wait_for_its_end() -> None:
    gate = Gate()

    def answer(body: Row) -> Any:
        text = body["messages"][-1]["content"]
        return Reply(text="one two three", hold=gate, hold_after=3) if text == "count" else reply_to(body)

    async with gateway(answer) as served:
        stream = await served.openai.responses.create(model="gpt-4o", input="count", background=True, stream=True)
        async for event in stream:
            if event.type == "response.created":
                name = event.response.id
            if event.type == "response.output_text.delta":
                break
        both = [ByResponse(served) for _ in range(2)]
        asked = []
        for number, (client, text) in enumerate(zip(both, ("and then?", "or else?"), strict=True)):
            client.response_id = name
            asked.append(asyncio.create_task(client.say(text)))
            await served.until_waiting(number + 1)
        assert (await served.openai.responses.cancel(name)).status == "cancelled"
        await asyncio.wait_for(at_once(*asked), 20)
        for sent, text in zip(
            sorted(prompts(served)[1:], key=lambda sent: sent[-1]), ("and then?", "or else?"), strict=True
        ):
            assert (sent[0], sent[-1], len(sent)) == ("count", text, 3)
            assert "one two three".startswith(sent[1])
        rows = {row["id"]: row["metadata"] for row in await served.rest.sessions()}
        assert rows[both[1].session_id]["forked_from"]["id"] == both[0].session_id
        assert (await served.openai.responses.retrieve(name)).status == "cancelled"


async def test_c7_equal_messages_of_two_devices_are_two_turns_and_a_retry_is_none() -> None:
    async with gateway(counting()) as served:
        phone, tablet = [Device(served, session_id="s", **ADA) for _ in range(2)]
        await phone.say("plan it")
        await at_once(phone.say("yes", headers=FIRST), tablet.say("yes", headers=FIRST))
        replies = {phone.seen[-1], tablet.seen[-1]}
        retry = Device(served, session_id="s", **ADA)
        await retry.say("yes", headers=AGAIN)
        assert retry.seen[-1] in replies
        assert (len(replies), len(served.upstream.requests)) == (2, 3)
        assert await logs(served) == {"s": ["plan it", "1. plan it", "yes", "2. yes", "yes", "3. yes"]}


async def test_c8_compaction_item_is_a_point_of_its_session() -> None:
    page = "Flight LH123 to Oslo costs 200 euros and leaves at 06:15. " * 12
    async with gateway(lambda body: f"{reply_to(body)[:20]} {page}") as served:
        ada = Client(served, "responses", **ADA)
        await talk(ada, 20)
        whole, session = ada.seen, ada.session_id
        done = await served.http.post("/v1/responses/compact", json={"model": "default", "input": ada.history, **ADA})
        item = done.json()["output"][-1]
        tab, second, stranger = [Client(served, "responses", user=name) for name in ("ada", "ada", "eve")]
        for client in (tab, second, stranger):
            client.history = [item]
        await tab.say("next")
        await tab.say("more")
        found = await logs(served)
        assert list(found) == [session] == [tab.session_id]
        assert found[session][:40] == whole
        assert [text[:8] for text in found[session][40:]] == ["next", "re: next", "more", "re: more"]
        assert await served.rest.search("LH123", user="ada")
        await second.say("something else")
        assert (await logs(served))[second.session_id][:40] == whole
        assert second.session_id != session
        assert not {"next", "more"} & set(prompt(served))
        answer = await served.http.post(
            stranger.path, json=stranger.make_body() | {"input": [item, user("what was said?")]}
        )
        assert "LH123" not in answer.text.replace(page, "")
        assert answer.status_code == 400 or "q1" not in str(served.sent)


async def test_c9_keyed_turn_of_a_killed_server_is_finished_by_another_one(tmp_path: Path) -> None:
    gate = Gate()
    script: list[Any] = [Reply(tool_calls=[("count", {})]), Reply(text="never said", hold=gate), "You are number 1."]
    body = {"session_id": "s", "messages": [user("Count me.")], "on_disconnect": "finish"}
    path = "/v1/chat/completions"
    async with ScriptedUpstream(script) as upstream:
        with start_tool_server(upstream.url, tmp_path) as one, start_tool_server(upstream.url, tmp_path) as two:
            async with connect(one) as client:
                lost = asyncio.create_task(client.post(path, json=body, headers=KEY))
                await upstream.until(lambda: len(upstream.requests) == 2)
                lost.cancel()
                await asyncio.gather(lost, return_exceptions=True)
            async with connect(two) as client:
                first = asyncio.create_task(client.post(path, json=body, headers=KEY))
                await asyncio.wait([first], timeout=1)
                assert len(upstream.requests) == 2
                await asyncio.to_thread(one.kill)
                await asyncio.wait_for(first, 10)
                answers = [(await client.post(path, json=body, headers=KEY)).json() for _ in range(2)]
                rows = (await client.get("/v1/sessions/s/messages")).json()["data"]
    assert [answer_of(answer) for answer in answers] == ["You are number 1."] * 2
    assert [row["content"] for row in rows] == ["Count me.", None, "1", "You are number 1."]
    assert (count_runs(tmp_path), len(upstream.requests)) == (1, 3)


def connect(server: Process) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=60)


async def test_c10_result_of_a_tool_is_stored_once_and_never_replaced() -> None:
    async with gateway(call_for("weather?", "c1")) as served:
        device = Device(served, session_id="s", tools=[CLIENT_TOOL])
        await device.say("weather?")
        asked = device.history
        await device.say(result("c1", "rain"))
        device.history = [*asked, result("c1", "rain")]
        await device.send()
        assert device.seen[-1] == "re: rain"
        await device.say("thanks")
        seen = ["weather?", None, "rain", "re: rain", "thanks", "re: thanks"]
        assert await logs(served) == {"s": seen}
        device.history = [*asked, result("c1", "sun")]
        told = await device.send(status=409, headers=FIRST)
        assert told["error"]["code"] == "result_exists"
        assert await logs(served) == {"s": seen}
