"""The gateway in one process, what happens to it, and what must always hold."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from holdfast import faults
from holdfast.agents import Llm, Roster
from holdfast.config.gateway import Gateway as Settings
from holdfast.domain.session import SessionRef
from holdfast.errors import ModelUnavailable, StoreUnavailable
from holdfast.models.collect import to_chunks
from holdfast.server.app import make_app
from holdfast.stores import open_store
from tests.clocks import START
from tests.given_store import HoldfastOn
from tests.simulation.loop import PROCESS, SeededLoop, operation
from tests.simulation.transport import Answer, Connection
from tests.unit.dialect_rules import openai as find_mistakes

Row = dict[str, Any]
MEMORY = "sqlite://:memory:"
"""Where everything is repeated exactly."""
GREETING = ("hi", "Hello!")
"""A beginning that many chats have, and the model's constant answer to it."""
_OWNER = re.compile(r"\[(\w+)[.~]\d+\]")
_TEXT = re.compile(r"\[\w+[.~]\d+\]")


class Violation(AssertionError):
    """Raised if something does not hold that must hold."""


class Lost(Exception):
    """Raised for a client whose connection broke before an answer came."""


@dataclass(frozen=True)
class Seen:
    """A message as a client knows it."""

    role: str
    text: str
    is_part: bool = False
    """True if the client has only the beginning of a reply."""
    breakdowns: float = math.inf
    """If there were more than so many breakdowns, the server may not have been able to keep it."""

    def equals(self, role: str, text: str) -> bool:
        """Return True for the same message in a prompt or log."""
        if self.role != role:
            return False
        return text.startswith(self.text.rstrip()) if self.is_part else text == self.text


def _list(seen: Sequence[Seen]) -> list[str]:
    return [f"{one.text}…" if one.is_part else one.text for one in seen]


@dataclass
class Ask:
    """A request, for all its attempts.

    Attributes:
        client: name of the client.
        person: whose it is: nobody else's words may be in its prompts and answers.
        view: the texts that its prompt must have, in this order, the new ones included.
        exact: True if the prompt may have nothing else.
        results: results of tools that the prompt must have.
        key: its explicit key.
        is_shared: True if another client writes to its session, or if it gets a fork when its answer was lost.
        unheard: replies that its client may have received in part, or not at all. The model adds to them.
        told: the text that an attempt was answered with in full.
    """

    client: str
    person: str
    view: Sequence[Seen]
    exact: bool
    results: Sequence[str] = ()
    key: str | None = None
    is_shared: bool = False
    unheard: set[str] = field(default_factory=set)
    told: str | None = None


_ask: ContextVar[Ask | None] = ContextVar("ask", default=None)


def read_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message of a prompt."""
    content = message.get("content")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


class Upstream:
    """The model: it answers, calls tools, stalls, breaks off and fails as chance has it. What it is sent is checked."""

    name = "upstream"

    def __init__(self, world: World) -> None:
        self._world = world

    async def stream(self, request: Row, *, headers: Mapping[str, str] | None = None) -> AsyncIterator[Row]:
        """See `Model.stream`."""
        world, chance, ask = self._world, self._world.chance, _ask.get()
        assert ask is not None
        await world.check_prompt(ask, request["messages"])
        message = self._make_reply(ask, request)
        fate = chance.random() if world.is_rough else 1.0
        world.note(
            f"  model for {ask.client}: {len(request['messages'])} messages -> {read_text(message) or message['tool_calls']} {fate:.2f}"
        )
        if fate < 0.15:
            world.misfortunes += 1
        await asyncio.sleep(chance.choice([0, 0.01, 0.3]) + (chance.randrange(5, 90) if 0.1 <= fate < 0.15 else 0))
        if fate < 0.04:
            raise ModelUnavailable("the model does not answer")
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        chunks = list(to_chunks({"id": "x", "model": "m", "choices": [choice]}, by_word=True))
        end = chance.randrange(len(chunks)) if fate < 0.1 else None
        for at, chunk in enumerate(chunks):
            if at == end:
                raise ModelUnavailable("the model went away")
            yield chunk
            await asyncio.sleep(chance.choice([0, 0, 0.02, 0.2]))

    def _make_reply(self, ask: Ask, request: Row) -> Row:
        chance, last = self._world.chance, request["messages"][-1]
        if read_text(last) == GREETING[0]:
            ask.unheard.add(GREETING[1])
            return {"role": "assistant", "content": GREETING[1]}
        names = [tool["function"]["name"] for tool in request.get("tools") or ()]
        if last["role"] == "user" and names and chance.random() < 0.35:
            number = (
                self._world.count() if chance.random() < 0.7 else 0
            )  # some providers number each reply's calls anew
            name = chance.choice(names)
            calls = [
                {"id": f"call_{number}_{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
                for at in range(chance.choice([1, 1, 2]))
            ]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        text = f"[{ask.person}~{self._world.count()}] alpha beta gamma delta"
        ask.unheard.add(text)
        if ask.key:
            self._world.replies_of_key.setdefault(ask.key, []).append(text)
        return {"role": "assistant", "content": text}

    async def close(self) -> None:
        """See `Model.close`."""


class World:
    """Everything outside of the gateway: the durable store, the model, time and misfortune; and what was acknowledged.

    Args:
        seed: of everything that chance decides.
        url: of the store.
        is_rough: False: no failures.
    """

    def __init__(self, seed: int, url: str, *, is_rough: bool = True) -> None:
        self.chance = Random(seed)
        self._place = (url, f"seed-{seed}" if url != MEMORY else "default")
        self.is_rough = is_rough
        self.trace: list[str] = []
        self.turns = self.misfortunes = self.breakdowns = self.process = 0
        self.acknowledged: list[tuple[str, str, str]] = []
        """User, session and text of all messages and replies that were acknowledged."""
        self.repeatable: set[str] = set()
        """Texts that a client sent again in a way that means them anew."""
        self.pictured: set[str] = set()
        """Texts of messages with a picture. Clients send it only until they have a reply."""
        self.unlisted: set[str] = set()
        """Texts that no session in a list may have."""
        self.begun: set[str] = set()
        """Ids that clients gave to sessions which have begun."""
        self.ran: dict[tuple[str, str], set[str]] = {}
        """Results of the server's tools by the question for which they ran, and its reply."""
        self.loose: set[str] = set()
        """Those whose prompts may have more than their clients believe."""
        self.replies_of_key: dict[str, list[str]] = {}
        self._number = 0
        self._open: list[Connection] = []
        self.violation: Violation | None = None
        self._up = asyncio.Event()
        self._home = copy_context()
        self._loop: Any = asyncio.get_running_loop()
        assert isinstance(self._loop, SeededLoop)

    def count(self) -> int:
        """Return the next number."""
        self._number += 1
        return self._number

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self._loop.time():9.3f} {line}")

    async def close(self) -> None:
        """End everything."""
        self._loop.dead.add(self.process)
        with operation():
            await self.store.close()

    # -- the process -------------------------------------------------------------

    async def begin(self) -> None:
        """Open the store, and start the first process."""
        url, tenant = self._place
        with operation():
            self.store = await open_store(url, tenant=tenant)
        for point in ("before-commit", "after-commit"):
            faults.active[point] = _Misfortune(self, point)
        await self.start()

    async def start(self) -> None:
        """Start a process on what is durable."""
        self.process += 1
        context = copy_context()
        context.run(PROCESS.set, self.process)
        self.app, self.hf = await self._loop.create_task(self._serve(), context=context)
        self._up.set()

    async def _serve(self) -> tuple[Any, HoldfastOn]:
        async def look_up() -> str:
            """Look something up. Clients never see the result."""
            ask = _ask.get()
            return f"found [{ask.person if ask else '?'}~{self.count()}]"

        roster = Roster({"default": Llm(name="default", model="gpt-4o", client=Upstream(self))})
        clock = lambda: START + int(self._loop.time() * 1000)  # noqa: E731
        hf = HoldfastOn(self.store, roster=roster, clock=clock, tools=[look_up], index=None)
        await hf.__aenter__()
        return make_app(hf, Settings(single_user=False), close=False), hf

    def kill(self) -> None:
        """Kill the process: nothing of it runs again, and its connections break. Start another one."""
        self.note(f"process {self.process} is killed")
        self.misfortunes += 1
        self.breakdowns += 1
        self._loop.dead.add(self.process)
        self._up.clear()
        for connection in self._open:
            connection.leave()
        self._loop.create_task(self.start(), context=self._home)

    async def send(
        self, ask: Ask, path: str, body: Row, headers: Row, *, hang_up: int | None, patience: float
    ) -> Answer:
        """Send a request; return what its client received before it left: after `hang_up` messages, or `patience` seconds.

        Raises:
            Lost: nothing was received, because the process was killed or the client left.
        """
        await self._up.wait()
        context = copy_context()
        context.run(PROCESS.set, self.process)
        context.run(_ask.set, ask)
        connection = Connection(hang_up)
        self._open = [one for one in self._open if not one.ended.done()] + [connection]
        task = self._loop.create_task(connection.call(self.app, path, body, headers), context=context)
        task.add_done_callback(connection.end)
        timer = self._loop.call_later(patience, connection.leave)
        await connection.ended
        timer.cancel()
        if task.done():
            task.result()
        answer = connection.answer
        if not answer.status or not (answer.streamed or connection.is_whole):
            raise Lost
        return answer

    # -- what must hold ------------------------------------------------------------

    def demand(self, holds: object, what: str) -> None:
        """Raise `Violation` unless something holds."""
        if not holds:
            self.note(f"VIOLATION: {what}")
            self.violation = self.violation or Violation(what)  # the gateway answers errors of a model with a status
            raise Violation(what)

    def check_owner(self, ask: Ask, words: object) -> None:
        """Check that nothing has another person's words."""
        strangers = set(_OWNER.findall(str(words))) - {ask.person}
        self.demand(not strangers, f"words of others: {ask.client} of {ask.person} gets words of {strangers}: {words}")

    async def check_prompt(self, ask: Ask, messages: Sequence[Row]) -> None:
        """Check a prompt: it is legal, only its person's, and has what its client has seen; and no turn of a key runs twice."""
        self.turns += 1
        self.check_owner(ask, messages)
        mistakes = find_mistakes(messages)
        self.demand(not mistakes, f"prompt is not legal: for {ask.client}: {mistakes}: {messages}")
        self.demand(messages[-1]["role"] in ("user", "tool"), f"prompt ends with a reply: for {ask.client}: {messages}")
        shown = [
            (one["role"], text) for one in messages if one["role"] in ("user", "assistant") and (text := read_text(one))
        ]
        self._compare(ask, shown)
        bare = [one for one in messages if isinstance(one.get("content"), str) and one["content"] in self.pictured]
        self.demand(not bare, f"picture missing: for {ask.client}: {bare}")
        self._check_runs(ask, messages)
        everything = "\n".join(map(read_text, messages))
        for result in ask.results:  # a result that comes after another turn is told in words
            times = everything.count(result)
            self.demand(times == 1, f"result missing or twice: {ask.client}: {result} is {times} times in {messages}")
        if ask.key:
            self.demand(ask.told is None, f"key runs twice: {ask.client}, answered: {ask.key}")
            for text in self.replies_of_key.get(ask.key, ()):
                stored = await self._find_complete(text)
                self.demand(not stored, f"key runs twice: {ask.client}, complete: {ask.key}: {text}")

    def _check_runs(self, ask: Ask, messages: Sequence[Row]) -> None:
        """Check that questions still have the results of the server's tools that ran for them."""
        if ask.is_shared or not any(one.role == "assistant" for one in ask.view):
            return  # another client retires questions, and without a reply before it each attempt may be a session of its own
        question, ran, replies = "", dict[str, set[str]](), dict[str, str]()
        for one in messages:
            text = read_text(one)
            if one["role"] == "user" and _TEXT.match(text):
                question, ran[text] = text, set()
            elif text.startswith("found [") and question:
                ran[question].add(text)
            elif one["role"] == "assistant" and text:
                replies[question] = text
        for seen, after in pairwise([*ask.view, Seen("user", "")]):
            known = self.ran.get((seen.text, after.text if after.role == "assistant" else ""), set())
            holds = known <= ran.get(seen.text, set()) or seen.text in self.repeatable | self.unlisted
            self.demand(holds, f"result forgotten: for {ask.client}: {known} after {seen.text}: {messages}")
        self.ran |= {(question, replies.get(question, "")): found for question, found in ran.items()}

    def _compare(self, ask: Ask, shown: Sequence[tuple[str, str]]) -> None:
        """Check that a prompt has the texts that its client has seen, in this order."""
        at, seen = 0, [one for one in ask.view if self.breakdowns <= one.breakdowns]
        for role, text in shown:
            if at < len(seen) and seen[at].equals(role, text):
                at += 1
                continue
            is_unheard = role == "assistant" and any(one.startswith(text) for one in ask.unheard)
            what = f"prompt has more: for {ask.client}: {text!r}\n  sent {_list(ask.view)}\n  got {shown}"
            self.demand(not ask.exact or is_unheard, what)
        self.demand(at == len(seen), f"prompt lacks: for {ask.client}: {_list(seen[at:])}\n  got {shown}")

    async def _find_complete(self, text: str) -> bool:
        """Return True if a reply is in the store, complete."""
        for ref in await self._list_sessions():
            for entry in await self.store.entries(ref, retired=True):
                if entry.message.text == text and not (entry.metadata or {}).get("interrupted"):
                    return True
        return False

    async def _list_sessions(self) -> list[SessionRef]:
        page = await self.hf.sessions(limit=1000, unplaced=True)
        self.demand(not page.has_more, "too many sessions")
        return [SessionRef(one.user_id, one.id) for one in page.sessions]

    async def check_logs(self) -> None:
        """Check all sessions: what was acknowledged is there, once, and only its person's."""
        kept: dict[tuple[str, str], set[str]] = {}
        listed = {one.id for one in (await self.hf.sessions(limit=1000)).sessions}
        for ref in await self._list_sessions():
            entries = await self.store.entries(ref, retired=True)
            kept[ref.user_id, ref.id] = {entry.message.text for entry in entries}
            hidden = kept[ref.user_id, ref.id] & self.unlisted if ref.id in listed else ()
            self.demand(not hidden, f"listed: {ref} has {hidden}")
            people = set(_OWNER.findall(str([entry.message for entry in entries])))
            self.demand(len(people) <= 1, f"words of others: {ref} has words of {people}")
            live = [entry.message.text for entry in entries if entry.retired_by is None]
            twice = {text for text in live if _TEXT.match(text) and live.count(text) > 1} - self.repeatable
            self.demand(not twice, f"stored twice: {twice} in {ref}: {live}")
            await self.hf.handle(await self.store.get(ref)).verify()
        for user, session_id, text in self.acknowledged:
            self.demand(text in kept.get((user, session_id), ()), f"lost: {text!r} of {session_id} of {user}")

    async def settle(self) -> None:
        """Wait until nothing is left to do, without more misfortune."""
        self.is_rough = False
        await asyncio.sleep(400)
        await self._up.wait()


class _Misfortune(faults.Fault):
    """Lets writes fail, and kills the process before and after writes."""

    def __init__(self, world: World, point: str) -> None:
        super().__init__(point, lambda: None)
        self._world, self._point = world, point

    async def hit(self) -> None:
        world = self._world
        process = PROCESS.get()
        if not world.is_rough or not process:
            return
        fate = world.chance.random()
        if fate < 0.005:
            world.kill()
            await asyncio.get_running_loop().create_future()
        elif fate < 0.012:
            world.note(f"  a write fails, {self._point}")
            world.misfortunes += 1
            world.breakdowns += 1
            raise StoreUnavailable("the store does not answer")
