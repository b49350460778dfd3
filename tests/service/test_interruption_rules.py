"""Operations on a session outside its turns: after each step, the log is compared with a naive reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agents import Llm, Roster
from holdfast.context.settings import parse
from holdfast.domain.session import Entry
from holdfast.errors import NoReply, TurnInterrupted
from holdfast.holdfast import Holdfast
from holdfast.models.collect import to_chunks
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.verify import verify
from holdfast.turns.respond import collect_reply
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.amounts import examples
from tests.behaviour.kit.anthropic import check_prompt
from tests.clocks import Clock
from tests.service.turns_kit import REF, SHARED, get_queue, renew_claim, retry_at_once
from tests.stores.servers import place
from tests.unit import dialect_rules
from tests.waits import until

Fact = dict[str, Any]
CONTEXT = parse({"strategy": "digest", "budget": 250}, where="")
"""Of the turns themselves: the frontier moves, what left is laid as a digest, and an interruption takes some of it away."""
STRATEGIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("none", {}),
    ("digest", {"budget": 250}),
    ("head_tail", {"window_size": 3}),
)


class Player:
    """A model that plays scripted rounds of text, all but the last with a call, and halts at one place. `rounds` are
    the texts of the next turn, `halt` is `before` the last round's first word, after it (`mid`), in the first
    round's `tool`, or None, and `sent` is what was sent of each round.
    """

    name = "player"

    def __init__(self) -> None:
        self.play([""], None)

    def play(self, rounds: list[str], halt: str | None) -> None:
        """Prepare the next turn."""
        self.rounds, self.halt = rounds, halt
        self.sent: list[str] = []
        self.there, self.gate = asyncio.Event(), asyncio.Event()
        if halt is None:
            self.there.set()
            self.gate.set()

    async def reach(self) -> None:
        """Report that the turn has reached its halt, and wait until `gate` is open."""
        self.there.set()
        await self.gate.wait()

    async def look(self) -> str:
        """A tool."""
        if self.halt == "tool":
            await self.reach()
        return "seen"

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Stream the next round."""
        assert not dialect_rules.openai(request["messages"]), request["messages"]
        text = self.rounds[len(self.sent)]
        self.sent.append("")
        last = len(self.sent) == len(self.rounds)
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if not last:
            function = {"name": "look", "arguments": "{}"}
            message["tool_calls"] = [{"id": f"c{len(self.sent)}", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "stop" if last else "tool_calls"}
        if last and self.halt == "before":
            await self.reach()
        for chunk in to_chunks({"id": "x", "model": "player", "choices": [choice]}, by_word=True):
            self.sent[-1] += "".join(one["delta"].get("content") or "" for one in chunk["choices"])
            yield chunk
            if last and self.sent[-1] and self.halt == "mid":
                await self.reach()

    async def close(self) -> None:
        """See `Model.close`."""


def join_rounds(texts: list[str]) -> str:
    """Join the rounds as the client receives them."""
    whole = ""
    for text in texts:
        if text:
            whole += ("\n\n" if whole and not whole[-1].isspace() and not text[0].isspace() else "") + text
    return whole


class World:
    """The expected log, and two servers with the actual one."""

    def __init__(self, servers: list[Holdfast], player: Player) -> None:
        self.servers, self.player = servers, player
        self.log: list[Fact] = []
        self.running: asyncio.Task[Any] | None = None
        self.count = 0

    def word(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def handle(self, at: int) -> SessionHandle:
        return SessionHandle(self.servers[at].engine, REF, self.servers[at].roster.find_responder())

    @property
    def turn_id(self) -> int:
        return self.log[-1]["turn"] if self.log else -1

    def put(self, role: str, text: str, **more: Any) -> None:
        opens = role == "user" and not (self.log and self.log[-1]["role"] == "user")
        turn = self.turn_id + 1 if opens or self.turn_id < 0 else self.turn_id
        self.log.append({"role": role, "text": text, "turn": turn, **more})

    # -- turns -------------------------------------------------------------

    async def turn(self, tools: int, halt: str | None, *, sent: list[Fact] | None = None, mode: Any = "auto") -> None:
        """Run a turn on the first server; it may be left at its halt."""
        await self.go_on()
        texts = [self.word("t") + " look" if number != 2 else "" for number in range(tools)]
        texts.append(f"{self.word('r')} one two three")
        if halt == "tool" and not tools:
            halt = "mid"
        self.player.play(texts, halt)
        if sent is None:
            said = self.word("u")
            self.put("user", said)
            sent = [{"role": "user", "content": said}]
        incoming = tuple(parse_message(one) for one in sent)
        first = self.servers[0]
        request = TurnRequest(ref=REF, responder=self.handle(0).responder, incoming=incoming, mode=mode)

        self.running = asyncio.create_task(collect_reply(Turn(first.engine, request)))
        there = asyncio.create_task(self.player.there.wait())
        await asyncio.wait([self.running, there], return_when=asyncio.FIRST_COMPLETED)
        there.cancel()
        if halt is None:
            await self.go_on()

    async def go_on(self) -> None:
        """Let the running turn finish."""
        if self.running is not None:
            running, self.running = self.running, None
            self.player.gate.set()
            await running
            self.reply(self.player.rounds)

    def reply(self, texts: list[str], *, cut: bool = False) -> None:
        for at, text in enumerate(texts[:-1]):
            self.put("calls", text)
            self.put("result", "seen", at=at)
        self.put("assistant", texts[-1], cut=cut, before=join_rounds(texts)[: len(join_rounds(texts)) - len(texts[-1])])

    def stop(self) -> bool:
        """Return True if a turn was running and had sent text; record what it leaves when it is stopped."""
        player = self.player
        if player.halt == "tool":
            self.put("calls", player.rounds[0])
            self.put("result", "stopped")
            return True
        texts = [*player.sent]
        if player.halt == "mid":
            self.reply(texts, cut=True)
            return True
        for text in texts[:-1]:
            self.put("calls", text)
            self.put("result", "seen")
        return len(texts) > 1

    async def from_outside(self, at: int, doing: Any) -> Any:
        """Run an operation that stops the running turn, on any server."""
        task = asyncio.create_task(doing)
        while not task.done():
            if at and get_queue(self.servers[0]) and get_queue(self.servers[0])[0].is_first:
                await renew_claim(self.servers[0])
            await asyncio.sleep(0)
        if self.running is not None:
            running, self.running = self.running, None
            with suppress(TurnInterrupted):
                await running
        return await task

    # -- interrupting --------------------------------------------------------

    async def interrupt(self, at: int, share: int, how: str) -> None:
        ran, said = self.running is not None, True
        if ran:
            said = self.stop()
        reply, behind = self.last()
        if ran and not said:
            reply = []
        starts, whole = self.starts(reply)
        heard = min(len(whole), len(whole) * share // 4)
        given: dict[str, Any] = {"chars": heard}
        if how == "content" and whole[:heard].split():
            given = {"content": " ".join(whole[:heard].split())}
            heard = len(whole[:heard].rstrip())
        elif how == "all":
            given, heard = {}, len(whole)
        taken = not ran and await self.take_back(at, behind)
        try:
            done = await self.from_outside(at, self.handle(at).interrupt(**given))
        except NoReply:
            assert not ran
            assert not reply or taken
            return
        assert done.stopped == ran
        if not ran:
            assert reply
            assert not taken
        self.cut(reply, behind, starts, whole, heard)
        again = await self.handle(1 - at).interrupt(**given) if reply and self.last()[0] == reply else None
        assert again is None or again.session.version == done.session.version

    async def take_back(self, at: int, behind: list[Fact]) -> bool:
        """Return True if a reply to the last message was removed already; the one before it is not interrupted then."""
        turns = {one["turn"] for one in behind}
        log = await self.handle(at).entries(retired=True)
        live = max(
            (one.seq for one in log if one.retired_by is None and one.kind not in ("user", "system")), default=-1
        )
        gone = [one for one in log if one.retired_by is not None and one.kind == "assistant" and one.seq > live]
        return any(one.turn_id in turns for one in gone)

    def last(self) -> tuple[list[Fact], list[Fact]]:
        """Return the last reply and the messages after it."""
        at = len(self.log)
        while at and self.log[at - 1]["role"] == "user":
            at -= 1
        end = at
        while at and self.log[at - 1]["role"] != "user":
            one = self.log[at - 1]
            if at < end and (one["role"] == "assistant" or one["turn"] != self.log[end - 1]["turn"]):
                break
            at -= 1
        return self.log[at:end], self.log[end:]

    @staticmethod
    def starts(reply: list[Fact]) -> tuple[dict[int, int], str]:
        """Return where each round begins in the generated text, and the text."""
        whole, starts = "", {}
        for at, one in enumerate(reply):
            if one["role"] != "result":
                text = one.get("original") or one["text"]
                whole = join_rounds([whole, text]) if whole else text
                starts[at] = len(whole) - len(text)
        return starts, whole

    def cut(self, reply: list[Fact], behind: list[Fact], starts: dict[int, int], whole: str, heard: int) -> None:
        place = len(self.log) - len(behind) - len(reply)
        for at, start in starts.items():
            one = reply[at]
            end = start + len(one.get("original") or one["text"])
            if end <= heard:
                continue
            kept = (one.get("original") or one["text"])[: max(0, heard - start)]
            if one.get("original") and heard - start >= len(one["text"]):
                return
            if one.get("cut") and not one.get("original") and heard - start >= len(one["text"]):
                return
            left: list[Fact] = []
            if kept.strip():
                texts = {"text": kept, "original": whole[start:], "before": whole[:start]}
                left = [{"role": "assistant", "turn": one["turn"], "cut": True, **texts}]
            self.log[place + at :] = [*left, *behind]
            return

    # -- other operations ----------------------------------------------------

    async def speak(self, at: int, priority: Any) -> None:
        ran = self.running is not None
        if ran and priority == "APPEND":
            task = asyncio.create_task(self.handle(0).speak("ding", priority=priority))
            await until(lambda: len(get_queue(self.servers[0])) >= 2)
            await self.go_on()
            done = await task
        else:
            if ran and priority == "INTERRUPT":
                self.stop()
            stops = priority == "INTERRUPT"
            done = await (self.from_outside if stops else _now)(at, self.handle(at).speak("ding", priority=priority))
        if ran and priority == "IGNORE":
            assert done.entry is None
            return
        assert done.entry is not None
        assert done.stopped == (ran and priority == "INTERRUPT")
        self.log.append({"role": "assistant", "text": "ding", "turn": self.turn_id + 1, "source": "command"})

    async def transcript(self, knows: int, again: int) -> None:
        """Run a turn of a client that resends everything: each reply whole or as heard, perhaps without the last one
        to get a new one.
        """
        await self.go_on()
        reply, behind = self.last()
        anew = (
            bool(again)
            and bool(reply)
            and not behind
            and reply[-1]["role"] == "assistant"
            and len(self.log) > len(reply)
        )
        anew = anew and self.log[-len(reply) - 1]["role"] == "user"
        if anew:
            self.log = self.log[:-1]  # the effects of its tools stay
        sent = []
        for one in self.log:
            if one["role"] == "user":
                sent.append({"role": "user", "content": one["text"]})
            elif one["role"] == "assistant":
                text = one.get("original", one["text"]) if knows else one["text"]
                sent.append({"role": "assistant", "content": one.get("before", "") + text})
        if not anew:
            said = self.word("u")
            sent.append({"role": "user", "content": said})
            self.put("user", said)
        await self.turn(0, None, sent=sent, mode="transcript")

    async def append(self) -> None:
        await self.go_on()
        said = self.word("u")
        await self.handle(0).append([{"role": "user", "content": said}])
        self.put("user", said)

    async def rewind(self, back: int) -> None:
        await self.go_on()
        turns = sorted({one["turn"] for one in self.log})
        if len(turns) > back:
            until = turns[-1 - back]
            await self.handle(1).rewind(until)
            self.log = [one for one in self.log if one["turn"] <= until]

    async def pin(self) -> None:
        await self.go_on()
        entries = await self.handle(1).entries()
        for entry in entries[-1:]:
            await self.handle(1).annotate(entry.seq, pinned=True)

    async def copies(self) -> None:
        """Check that a fork and an import have the same history and are valid."""
        await self.go_on()
        if not self.log:
            return
        first = self.servers[0]
        history = await self.handle(0).history()
        fork = await self.handle(0).fork()
        assert await fork.history() == history
        data = await first.export(REF, retired=True, digests=True)
        name = self.word("copy")
        await first.import_(data, session_id=name, replace=True)
        copy = first.handle(await first.store.get(type(REF)(REF.user_id, name)))
        assert await copy.history() == history
        for one in (fork, copy):
            await one.verify()
            with suppress(NoReply):
                await one.interrupt(chars=1)
            await one.verify()

    async def check(self) -> None:
        """Check the log, the history and the contexts."""
        await self.go_on()
        entries = await self.servers[1].store.entries(REF)
        assert [fact(one) for one in entries] == [plain(one) for one in self.log]
        for server in self.servers:
            await verify(server.store, REF)
            assert server.engine.locks.is_empty
        assert (await self.servers[0].store.get(REF)).claim is None
        records = await self.handle(0).history()
        said = [one for one in self.log if one["role"] in {"user", "assistant", "calls"} and one["text"].strip()]
        assert [record["content"] for record in records] == [one["text"] for one in said]
        for record, one in zip(records, said, strict=True):
            cut = {"interrupted", "interrupt_timestamp", "original"} if one.get("cut") else set()
            assert set(record["metadata"]) == {"source"} | cut, record
            if cut:
                assert record["metadata"]["original"] == one.get("original", one["text"])
        for strategy, options in STRATEGIES:
            await self.contexts(strategy, options)

    async def contexts(self, strategy: str, options: dict[str, Any]) -> None:
        """Check warm and cold contexts for every provider."""
        if not any(one["role"] == "user" for one in self.log):
            return
        for dialect in ("openai", "anthropic"):
            one, two = [await self.handle(at).context(strategy, dialect=dialect, **options) for at in (0, 1)]
            assert one.messages == two.messages
            if dialect == "openai":
                assert not dialect_rules.openai(one.messages), one.messages
            elif one.messages[-1]["role"] == "user":
                assert not check_prompt({"messages": one.messages}), one.messages


async def _now(_: int, doing: Any) -> Any:
    return await doing


def fact(entry: Entry) -> tuple[Any, ...]:
    metadata = entry.metadata or {}
    text = None if entry.kind == "result" else entry.message.text
    return entry.turn_id, entry.kind, text, bool(metadata.get("interrupted")), metadata.get("original")


def plain(one: Fact) -> tuple[Any, ...]:
    text = None if one["role"] == "result" else one["text"]
    return one["turn"], one["role"], text, bool(one.get("cut")), one.get("original")


small = st.integers(0, 1)
halts = st.sampled_from([None, "before", "mid", "tool"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 2), halts),
        st.tuples(st.just("turn"), st.integers(0, 2), halts),
        st.tuples(st.just("interrupt"), small, st.integers(0, 5), st.sampled_from(["chars", "content", "all"])),
        st.tuples(st.just("interrupt"), small, st.integers(0, 5), st.sampled_from(["chars", "content", "all"])),
        st.tuples(st.just("speak"), small, st.sampled_from(["INTERRUPT", "APPEND", "IGNORE"])),
        st.tuples(st.just("transcript"), small, small),
        st.tuples(st.just("append")),
        st.tuples(st.just("rewind"), small),
        st.tuples(st.just("pin")),
        st.tuples(st.just("copies")),
        st.tuples(st.just("check")),
    ),
    min_size=2,
    max_size=12,
)


async def play(url: str, done: list[tuple[Any, ...]], *, openings: int = 2) -> None:
    player, clock = Player(), Clock()
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(openings):
            roster = Roster({"default": Llm(name="default", model="gpt-4o", client=player)}, context=CONTEXT)
            servers.append(
                await stack.enter_async_context(Holdfast(url, roster=roster, tools=[player.look], clock=clock))
            )
        retry_at_once(*servers)
        await servers[0].session("s")
        world = World([servers[0], servers[-1]], player)
        for what, *how in done:
            clock.now += 1
            await getattr(world, what)(*how)
        await world.check()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(done=steps)
def test_log_equals_the_reference_after_any_operations(done: list[tuple[Any, ...]]) -> None:
    asyncio.run(play("sqlite://:memory:", done, openings=1))


@SHARED
def test_log_equals_the_reference_on_every_store_with_two_servers(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One server interrupts the turns of the other."""

    @settings(max_examples=examples(16), deadline=None, suppress_health_check=list(HealthCheck))
    @given(done=steps)
    def through(done: list[tuple[Any, ...]]) -> None:
        with place(kind, tmp_path_factory.mktemp("rules")) as url:
            asyncio.run(play(url, done))

    through()
