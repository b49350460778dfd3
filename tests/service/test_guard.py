"""Secrets on their way into a session: through turns, retries, resent transcripts, the library and the server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.agents import Llm, Roster
from holdfast.config import load
from holdfast.context.settings import ContextSettings
from holdfast.domain.memory import DiaryEntry, MemoryDelta
from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.session import NewCompaction, NewEntry, SessionRef
from holdfast.domain.state import Extend, Increment
from holdfast.engine.guarded import TEXTLESS, GuardedStore
from holdfast.errors import InvalidMessage, ModelUnavailable, SecretBlocked, StaleSession, StaleState
from holdfast.holdfast import Holdfast
from holdfast.models import as_chunks
from holdfast.secrets import CREDENTIALS, Guard, Pattern, guard_of, make_redactor
from holdfast.server.app import make_app
from holdfast.server.logs import JsonLines
from holdfast.stores.base import Append, NewSession, SavedView, SessionPatch, Store
from holdfast.stores.wrapper import StoreWrapper
from holdfast.testing.contract.memory_kit import ANN, memory, put, signal
from holdfast.tokens import STORED
from tests.service.summary_kit import LABEL
from tests.service.told_model import REF, ToldModel

CANARY = "c4n4ry" * 5
KEY = f"sk-ant-{CANARY}"
GONE = "[REDACTED:anthropic_key]"
REDACTION = "redaction: {enabled: true}"
GUARD = "secret_guard: {on_secret: %s}"


def guard_from(text: str) -> Guard:
    config = load(text, env={})
    guard = guard_of(config.redaction, config.secret_guard)
    assert guard is not None
    return guard


class Desk:
    """A Holdfast with a guard on a file, its model, and a client of its server."""

    def __init__(self, hf: Holdfast, guard: Guard, model: ToldModel, http: httpx2.AsyncClient, folder: Path) -> None:
        self.hf = hf
        self.guard = guard
        self.model = model
        self.http = http
        self.folder = folder

    def on_disk(self) -> bytes:
        """All bytes of the database's files."""
        files = sorted(self.folder.glob("chat.db*"))
        assert any(file.name == "chat.db-wal" for file in files)
        return b"".join(file.read_bytes() for file in files)

    def check(self) -> None:
        """Nothing of the secret is anywhere on the disk."""
        assert CANARY.encode() not in self.on_disk()

    async def texts(self, **filters: Any) -> list[str]:
        return [entry.message.text for entry in await self.hf.store.entries(REF, **filters)]

    async def chat(self, *messages: dict[str, Any], **more: Any) -> Any:
        headers = more.pop("headers", {})
        body = {"session_id": "s", "messages": messages, **more}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)


@asynccontextmanager
async def desk(
    folder: Path, settings: str, say: Callable[[dict[str, Any]], Any] = lambda _: "ok", **options: Any
) -> AsyncIterator[Desk]:
    model, guard = ToldModel(say), guard_from(settings)
    context = ContextSettings(options.pop("strategy", "digest"), options)
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)}, context=context)
    async with Holdfast(f"sqlite:///{folder}/chat.db", roster=roster, guard=guard) as hf:
        await hf.session("s")
        transport = httpx2.ASGITransport(app=make_app(hf, close=False))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield Desk(hf, guard, model, http, folder)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """No line of any log holds the secret, as the server writes it."""
    caplog.set_level(logging.DEBUG)
    yield
    shown = [JsonLines().format(record) for record in caplog.get_records("call") if record.name.startswith("holdfast")]
    assert not [line for line in shown if CANARY in line]


# -- one choke point -------------------------------------------------------------------


def test_every_method_of_a_store_is_guarded_or_brings_no_text() -> None:
    methods = {name for name in dir(Store) if not name.startswith("_") and callable(getattr(Store, name))}
    guarded = {name for name in dir(GuardedStore) if not name.startswith("_") and name not in dir(StoreWrapper)}
    assert methods - guarded - TEXTLESS == {"for_tenant"}, "does it write text? guard it, else name it in TEXTLESS"
    assert not guarded & TEXTLESS


async def test_memories_are_without_secrets(tmp_path: Path) -> None:
    """What they say, tags, metadata and diary: masked before anything is stored."""
    note = DiaryEntry(id="d", at=1, report={"why": KEY})
    async with desk(tmp_path, "secret_guard: {enabled: true, on_secret: redact}") as d:
        new = memory(f"my {KEY} x", tags=(KEY,), metadata={KEY: [KEY]})
        delta = MemoryDelta(put=(new,), diary=(note,), signals=(signal(new),))
        (kept,) = (await d.hf.store.change_memories(ANN, delta, timestamp=2)).memories
        assert kept.content.startswith("my ")
        assert kept.content.endswith(" x")
        d.check()
        (kept,) = await put(d.hf.store, replace(kept, content=f"again {KEY}"))
        assert (kept.number, kept.content.startswith("again ")) == (1, True)
        assert len(await d.hf.store.signals(ANN)) == 1
        d.check()


async def test_a_memory_with_a_secret_is_refused_or_masked(tmp_path: Path) -> None:
    """Blocking refuses what a user asked for; what an agent remembered, or is there already, is masked."""
    async with desk(tmp_path, "secret_guard: {enabled: true, on_secret: block}") as d:
        with pytest.raises(SecretBlocked):
            await put(d.hf.store, memory("fine"), memory(f"my {KEY}"))
        assert await d.hf.store.memory_owners() == ()
        for made in (memory(KEY, agent="a"), memory(KEY, origin="tool")):
            (kept,) = await put(d.hf.store, made)
            assert KEY not in kept.content
        await put(d.hf.store, replace(kept, content=KEY, origin="user"))
        d.check()


async def test_all_that_is_written_is_without_secrets(tmp_path: Path) -> None:
    call = ToolCall("c1", "find", json.dumps({"key": KEY}))
    messages = [
        Message(role="user", content=(Part("text", f"my {KEY}"),), name=KEY),
        Message(role="assistant", content=None, tool_calls=(call,), extra={"reasoning": KEY}),
        Message(role="tool", content=f'{{"found": "{KEY}"}}', tool_call_id="c1"),
    ]
    system = (Message(role="system", content=f"you are {KEY}"),)
    new = NewSession(
        id="t", user_id="default", timestamp=1, system_messages=system, state={KEY: 1}, metadata={"m": KEY}
    )
    entries = [NewEntry(message=one, tokens=1, timestamp=1, metadata={"original": KEY}) for one in messages]
    async with desk(tmp_path, REDACTION) as at:
        store = at.hf.store
        made = await store.create(new)
        assert (made.state, made.metadata, made.system_messages[0].text) == ({GONE: 1}, {"m": GONE}, f"you are {GONE}")
        write = Append(timestamp=2, entries=entries, state_delta={"k": [KEY]}, compactions=[_compaction()])
        written = await store.append(made.ref, write)
        patch = SessionPatch(system_messages=(*system, *system), state={"x": KEY}, metadata={KEY: KEY})
        changed = await store.update(made.ref, patch, timestamp=3)
        assert changed.state == {GONE: 1, "k": [GONE], "x": GONE}
        await store.replace(replace(new, id="u"), entries)
        stored = written.entries
        assert [entry.tokens for entry in stored] == [STORED.message(entry.message) for entry in stored]
        assert json.loads(stored[1].message.tool_calls[0].arguments) == {"key": GONE}
        assert stored[2].message.text == f'{{"found": "{GONE}"}}'
        [laid] = await store.compactions(made.ref)
        assert (laid.text, laid.report) == (f"said {GONE}", {"lost": [GONE]})
        for session_id in ("t", "u"):
            assert await (await at.hf.session(session_id)).verify() == 3
        at.check()
        assert at.guard.counts == {("anthropic_key", "redact"): 30}


def _compaction() -> NewCompaction:
    fields: dict[str, Any] = {"tokens": 1, "source_tokens": 1, "total": 1, "created_at": 1, "through": 0}
    return NewCompaction(
        view="v", first=0, last=0, kind="summary", text=f"said {KEY}", report={"lost": [KEY]}, **fields
    )


SHARED_DELTA: dict[str, Any] = {"user:k": [KEY], "app:l": Extend((KEY, 1)), KEY: KEY, "n": Increment(), "gone": None}


@pytest.mark.parametrize("settings", [REDACTION, GUARD % "redact"])
async def test_state_of_all_scopes_is_without_secrets(tmp_path: Path, settings: str) -> None:
    """In every write of it; what is expected is compared as it was stored, and nobody is told of that."""
    async with desk(tmp_path, settings) as at:
        store = at.hf.store
        made = await store.create(NewSession(id="t", user_id="default", timestamp=1, state=SHARED_DELTA))
        assert made.state == {GONE: GONE, "n": 1}
        await store.append(made.ref, Append(timestamp=2, state_delta=SHARED_DELTA, state_expect={KEY: KEY}))
        changed = await store.update(made.ref, SessionPatch(state=SHARED_DELTA), timestamp=3)
        assert changed.state == {GONE: GONE, "n": 3}
        assert (await store.state("default")).values == {"k": [GONE]}
        assert (await store.state(None)).values == {"l": [GONE, 1] * 3}
        counted = at.guard.counts.copy()
        delta = {"k": Extend((KEY,)), "n": Increment(), "gone": None}
        told = await store.change_state("default", delta, timestamp=4, values={"k": [KEY], KEY: None})
        assert told.values == {"k": [GONE, GONE], "n": 1}
        told = await store.change_state("default", {GONE: 1, KEY: 2}, timestamp=5)
        assert told.values == {GONE: 1, f"{GONE} (2)": 2}
        with pytest.raises(StaleState):
            await store.change_state("default", delta, timestamp=4, values={"k": [KEY]})
        assert at.guard.counts.total() == counted.total() + 2
        at.check()


async def test_state_with_a_secret_is_refused(tmp_path: Path) -> None:
    """Where secrets are blocked, whoever sends it is told; what tools set, with their results, is stored without."""
    async with desk(tmp_path, GUARD % "block") as at:
        store = at.hf.store
        for delta in ({"k": KEY}, {"k": Extend((KEY,))}, {KEY: 1}):
            with pytest.raises(SecretBlocked):
                await store.change_state("default", delta, timestamp=1)
            state = {f"user:{key}": value for key, value in delta.items()}
            with pytest.raises(SecretBlocked):
                await store.create(NewSession(id="t", user_id="default", timestamp=1, state=state))
        assert (await store.state("default")).version == 0
        made = await store.create(NewSession(id="t", user_id="default", timestamp=1))
        write = Append(timestamp=2, state_delta={"user:k": Extend((KEY,))})
        with pytest.raises(SecretBlocked):
            await store.append(made.ref, write)
        result = NewEntry(message=Message(role="assistant", content="done"), timestamp=2, tokens=1)
        await store.append(made.ref, replace(write, entries=[result]))
        assert (await store.state("default")).values == {"k": [GONE]}


async def test_another_tenants_handle_is_guarded_too(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION) as at:
        other = at.hf.store.for_tenant("acme")
        made = await other.create(NewSession(id="t", user_id="u", timestamp=1, metadata={"m": KEY}))
        assert (made.tenant, made.metadata) == ("acme", {"m": GONE})


async def test_what_was_not_written_is_not_counted(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION) as at:
        session = await at.hf.session("s")
        with pytest.raises(StaleSession):
            await session.append(KEY, expect=17)
        assert at.guard.counts == {}
        for _ in range(2):
            await session.append(KEY, idempotency_key="k")
        assert at.guard.counts == {("anthropic_key", "redact"): 1}
        assert await at.texts() == [GONE]


# -- redact --------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [REDACTION, GUARD % "redact"])
async def test_a_turn_stores_and_sends_what_is_redacted(tmp_path: Path, settings: str) -> None:
    async with desk(tmp_path, settings, lambda _: f"your key {KEY}") as at:
        session = await at.hf.session("s")
        said = await session.send([{"role": "system", "content": f"know {KEY}"}, user(f"take {KEY}")])
        # What the client is sent has left already when the reply is written.
        assert said["choices"][0]["message"]["content"] == f"your key {KEY}"
        assert await at.texts() == [f"take {GONE}", f"your key {GONE}"]
        assert at.model.prompts == [[{"role": "system", "content": f"know {GONE}"}, user(f"take {GONE}")]]
        at.check()
        assert at.guard.counts == {("anthropic_key", "redact"): 2}


async def test_a_retry_with_a_secret_in_it_is_a_retry(tmp_path: Path) -> None:
    answers: list[Any] = [ModelUnavailable("away"), ModelUnavailable("away"), "now"]
    async with desk(tmp_path, REDACTION, lambda _: [answers.pop(0)] if len(answers) > 1 else answers[0]) as at:
        session = await at.hf.session("s")
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await session.send(f"take {KEY}")
            # As it is remembered, and as it is read.
            at.hf.engine.warm.forget(REF)
        await session.send(f"take {KEY}")
        assert await at.texts() == [f"take {GONE}", "now"]
        assert at.guard.counts == {("anthropic_key", "redact"): 1}


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("settings", [REDACTION, GUARD % "redact", GUARD % "block"])
async def test_a_resent_transcript_is_recognised(tmp_path: Path, settings: str, warm: bool) -> None:
    def say(request: dict[str, Any]) -> str:
        return f"answer {len(request['messages'])} {KEY}"

    async with desk(tmp_path, settings, say) as at:
        asked = "hi" if "block" in settings else f"hi {KEY}"
        history = [user(asked)]
        for turn in range(3):
            if not warm:
                at.hf.engine.warm.forget(REF)
            reply = await at.chat(*history)
            assert reply.status_code == 200, reply.text
            told = reply.json()
            assert told["session"]["reconciled"] == ("continued" if turn else "new")
            history += [told["choices"][0]["message"], user(f"more {turn}")]
        stored = await at.texts(retired=True)
        assert stored == [one["content"].replace(KEY, GONE) for one in history[:-1]]
        at.check()
        assert sum(at.guard.counts.values()) == str(stored).count(GONE)


async def test_a_tool_round_in_the_library(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION) as at:
        session = await at.hf.session("s")
        async with session.turn(f"find {KEY}") as turn:
            assert turn.messages == [user(f"find {GONE}")]
            function = {"name": "find", "arguments": json.dumps({"k": KEY})}
            turn.add({"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]})
            turn.add({"role": "tool", "tool_call_id": "c", "content": KEY})
            messages = await turn.next()
            assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {"k": GONE}
            assert messages[2]["content"] == GONE
            turn.add("found it")
        assert await session.verify() == 4
        at.check()


async def test_an_interrupted_reply_is_redacted_too(tmp_path: Path) -> None:
    chunks = list(as_chunks({"id": "x", "model": "m", "choices": [{"index": 0, "message": assistant(KEY)}]}))
    async with desk(tmp_path, REDACTION, lambda _: [chunks[0], ModelUnavailable("gone")]) as at:
        with pytest.raises(ModelUnavailable):
            await (await at.hf.session("s")).send("hi")
        assert await at.texts() == ["hi", GONE]
        at.check()


async def test_an_idempotency_key_answers_again(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION, lambda _: f"it is {KEY}") as at:
        headers = {"idempotency-key": "once"}
        replies = [await at.chat(user(f"take {KEY}"), headers=headers) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200]
        assert len(at.model.prompts) == 1
        assert await at.texts() == [f"take {GONE}", f"it is {GONE}"]
        assert (await at.chat(user("another"), headers=headers)).status_code == 422
        at.check()


async def test_a_summary_is_redacted_in_the_view_too(tmp_path: Path) -> None:
    """What was removed may come back by a model that makes it up, or was trained on it."""
    text = f"The user asks about orders; the key is {KEY}."

    def say(request: dict[str, Any]) -> str:
        return (
            text
            if "ORD-0000" not in str(request["messages"][-1]) and "ummar" in str(request["messages"][0])
            else "so " * 50
        )

    async with desk(tmp_path, REDACTION, say, strategy="summary_buffer", budget=1000, summarizer_llm="default") as at:
        session = await at.hf.session("s")
        for number in range(8):
            await session.send(f"question about order {number}: " + "why not " * 40)
            await at.hf.engine.compactor.idle()
        found = await session.compactions()
        assert [one for one in found if GONE in one.text]
        prompt = [one["content"] for one in (await session.context()).messages]
        assert any(one.startswith(LABEL) and GONE in one for one in prompt)
        at.check()


# -- block ---------------------------------------------------------------------------


async def test_block_refuses_what_is_sent_and_writes_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, GUARD % "block") as at:
        session = await at.hf.session("s")
        before = await session.info()
        sent = [user("hi"), assistant(f"ho {KEY}"), user(f"take {KEY}")]
        for attempt in (
            lambda: session.send(sent),
            lambda: session.append(sent),
            lambda: at.hf.session("new", system=f"be {KEY}"),
            lambda: session.update(metadata={"k": KEY}),
            lambda: session.update(state={KEY: 1}),
            lambda: session.update(system_messages=(Message(role="system", content=KEY),)),
            lambda: _open(session, sent),
        ):
            with pytest.raises(SecretBlocked, match="rule anthropic_key") as caught:
                await attempt()
            assert CANARY not in f"{caught.value} {caught.value.param} {caught.value.found}"
        assert await session.info() == before
        assert len((await at.hf.sessions()).sessions) == 1
        at.check()
        assert at.guard.counts == {("anthropic_key", "block"): 7}


async def _open(session: Any, sent: Any) -> None:
    async with session.turn(sent):
        raise AssertionError("the turn began")


async def test_block_in_an_open_turn_is_told_where_it_is_added(tmp_path: Path) -> None:
    async with desk(tmp_path, GUARD % "block") as at:
        session = await at.hf.session("s")
        async with session.turn("hi") as turn:
            with pytest.raises(SecretBlocked):
                turn.add(user(KEY))
            turn.add(f"no {KEY}")
        assert await at.texts() == ["hi", f"no {GONE}"]


async def test_block_over_http(tmp_path: Path) -> None:
    async with desk(tmp_path, GUARD % "block") as at:
        messages = [{"role": "system", "content": "be good"}, user("hi"), user(f"take {KEY}")]
        answers = [
            (await at.chat(*messages, session_id="fresh"), "messages[2].content"),
            (await at.chat(*messages, session_id="fresh", stream=True), "messages[2].content"),
            (await at.chat({"role": "system", "content": KEY}, user("x"), session_id="fresh"), "messages[0].content"),
            (await at.http.post("/v1/sessions", json={"id": "fresh", "metadata": {"k": KEY}}), "metadata"),
            (await at.http.post("/v1/sessions/s/messages", json={"messages": [user(KEY)]}), "messages[0].content"),
            (await at.http.patch("/v1/sessions/s", json={"state": {"k": KEY}}), "state"),
            (await at.http.put("/v1/sessions/fresh", json={"messages": [user(KEY)]}), "messages[0].content"),
        ]
        for reply, param in answers:
            assert reply.status_code == 422, reply.text
            error = reply.json()["error"]
            assert (error["code"], error["param"], error["type"]) == ("secret_blocked", param, "invalid_request_error")
            assert CANARY not in reply.text
        assert (await at.http.get("/v1/sessions/fresh")).status_code == 404
        assert await at.texts() == []
        assert at.model.prompts == []
        at.check()


async def test_block_cannot_refuse_a_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with desk(tmp_path, GUARD % "block", lambda _: f"it is {KEY}") as at:
        reply = await at.chat(user("what is it?"))
        assert reply.json()["choices"][0]["message"]["content"] == f"it is {KEY}"
        assert await at.texts() == ["what is it?", f"it is {GONE}"]
        [line] = [record for record in caplog.records if record.name == "holdfast.secrets"]
        assert line.getMessage() == "a secret that could not be refused was redacted"
        assert (
            json.loads(JsonLines().format(line)).items()
            >= {
                "level": "warning",
                "session_id": "s",
                "rule": "anthropic_key",
                "place": "messages[0].content",
                "action": "redact",
            }.items()
        )
        at.check()


# -- warn ----------------------------------------------------------------------------


async def test_warn_stores_it_and_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with desk(tmp_path, GUARD % "warn") as at:
        for _ in range(2):
            await at.chat(user("hi"), user(f"take {KEY}"), headers={"idempotency-key": "once"})
        assert await at.texts() == ["hi", f"take {KEY}", "ok"]
        assert CANARY.encode() in at.on_disk()
        assert at.model.prompts[0][1] == user(f"take {KEY}")
        [line] = [record for record in caplog.records if record.name == "holdfast.secrets"]
        assert (line.getMessage(), line.levelname) == ("a secret was stored", "WARNING")
        fields = {"session_id": "s", "rule": "anthropic_key", "place": "messages[1].content", "action": "warn"}
        assert line.__dict__["fields"] == fields
        metrics = (await at.http.get("/metrics")).text
        assert 'holdfast_secrets_total{action="warn",rule="anthropic_key"} 1.0' in metrics


# -- errors and logs -------------------------------------------------------------------


async def test_errors_do_not_quote_secrets(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION) as at:
        for body in (
            {"messages": [{"role": KEY, "content": "x"}]},
            {"messages": [{"role": "user", "content": "x", "metadata": KEY}]},
            {"messages": [user("x")], KEY: 1},
        ):
            reply = await at.http.post("/v1/sessions/s/messages", json=body)
            assert reply.status_code == 400
            assert GONE in reply.text
            assert CANARY not in reply.text
        session = await at.hf.session("s")
        for given in ({"role": KEY, "content": "x"}, {"role": "user", "content": "x", "pinned": KEY}):
            with pytest.raises(InvalidMessage) as caught:
                await session.append(given)
            assert CANARY not in f"{caught.value!r} {caught.value.param}"
        with pytest.raises(InvalidMessage, match="anthropic_key"):
            await session.send({"role": KEY, "content": "x"})
        for stream in (False, True):
            reply = await at.chat({"role": KEY, "content": "x"}, stream=stream)
            assert (reply.status_code, GONE in reply.text, CANARY in reply.text) == (400, True, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_upstream_says_of_it_is_redacted(tmp_path: Path, stream: bool) -> None:
    chunks = list(as_chunks({"id": "x", "model": "m", "choices": [{"index": 0, "message": assistant("half")}]}))
    async with desk(tmp_path, REDACTION, lambda _: [*chunks[:1], ModelUnavailable(f"refused {KEY}")]) as at:
        reply = await at.chat(user("hi"), stream=stream)
        assert GONE in reply.text
        assert CANARY not in reply.text


def test_lines_of_the_log_are_redacted() -> None:
    lines = JsonLines(Guard(make_redactor()))
    error = ValueError(f"no {KEY}")
    record = logging.LogRecord("holdfast", logging.ERROR, "f", 1, "oh %s", (KEY,), (ValueError, error, None))
    record.__dict__["fields"] = {"k": KEY}
    said = json.loads(lines.format(record))
    assert (said["message"], said["k"]) == (f"oh {GONE}", GONE)
    assert said["error"] == f"ValueError: no {GONE}"


# -- both, and a large load ---------------------------------------------------------------


async def test_redaction_first_and_the_guard_behind_it(tmp_path: Path) -> None:
    settings = "redaction: {enabled: true, use_builtins: false, patterns: [{regex: 'emp-[0-9]{6}', label: employee}]}"
    async with desk(tmp_path, f"{settings}\nsecret_guard: {{}}") as at:
        session = await at.hf.session("s")
        await session.append("emp-123456 in /home/ada")
        with pytest.raises(SecretBlocked):
            await session.append(f"emp-123456 {KEY}")
        assert await at.texts() == ["[REDACTED:employee] in /home/ada"]


async def test_long_messages_leave_the_loop_to_others(tmp_path: Path) -> None:
    text = f"{'word ' * 40_000}{KEY} {'word ' * 40_000}"
    async with desk(tmp_path, REDACTION) as at:
        session = await at.hf.session("s")
        others = [await at.hf.session(f"s{n}") for n in range(5)]
        await asyncio.gather(session.send(text), *(other.send(f"hi {KEY}") for other in others))
        entry = (await session.entries())[0]
        assert entry.message.text == text.replace(KEY, GONE)
        assert entry.tokens == STORED.message(entry.message)
        at.check()


def test_a_guard_can_be_made_by_hand() -> None:
    guard = Guard(watch=make_redactor(patterns=[Pattern("x{3}", "xxx")], everything=CREDENTIALS), action="redact")
    assert guard.masked([Message(role="user", content=f"xxxx {KEY}")])[0].content == f"[REDACTED:xxx]x {GONE}"
    assert guard.masked([Message(role="user", content=UNSET)])[0].content is UNSET


def test_a_write_without_text_is_passed_on(tmp_path: Path) -> None:
    async def check() -> None:
        async with desk(tmp_path, REDACTION) as at:
            view = SavedView(0, b"state")
            done = await at.hf.store.append(REF, Append(timestamp=1, views={"v": view}))
            assert done.entries == ()
            assert await at.hf.store.get(SessionRef("default", "s")) == done.session

    asyncio.run(check())


async def test_an_import_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    data = {
        "messages": [{**user(f"take {KEY}"), "metadata": {"note": KEY}}, assistant(KEY)],
        "system_messages": [f"be {KEY}"],
        "state": {"k": KEY},
        "metadata": {"k": KEY},
    }
    async with desk(tmp_path, REDACTION) as at:
        arrivals = [await at.hf.import_(data, session_id="t") for _ in range(2)]
        assert [arrival.changed for arrival in arrivals] == [True, False]
        assert at.guard.counts == {("anthropic_key", "redact"): 6}
        fork = await at.hf.fork(SessionRef("default", "t"))
        assert [entry.message.text for entry in await fork.entries()] == [f"take {GONE}", GONE]
        at.check()
    async with desk(tmp_path, GUARD % "block") as at:
        with pytest.raises(SecretBlocked):
            await at.hf.import_(data, session_id="t")
