"""Two tenants, their users and all their sessions: sends what clients want to send, and checks everything against the rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.agents import Llm, Roster
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.matching.retries import UndeliveredReplies
from holdfast.wire.openai import to_chat_message
from tests.given_store import HoldfastOn
from tests.service.simulator.gateway import Answer, Gateway, Speaker
from tests.service.simulator.reference import Entry, Landing, Log, land, read_content, text, visible
from tests.unit.dialect_rules import openai as refused

Data = dict[str, Any]
TENANTS = ("acme", "umbra")


@dataclass(kw_only=True)
class Ask:
    """A request, and what happens while it is answered."""

    sent: list[Data]
    view: list[Data]
    """What the client will show from then on, the reply aside."""
    named: bool = False
    mode: str = "auto"
    match: str = "on"
    system: str | None = None
    stream: bool = False
    key: str | None = None
    breaks: int | None = None
    """The model breaks off after so many chunks."""
    hang_up: int | None = None
    """The client goes away after so many messages of the answer."""


@dataclass(kw_only=True)
class Person:
    """A client: its user, its history, and its history before it was edited."""

    owner: tuple[str, str]
    name: str
    """What its words begin with. Two with the same name say the same."""
    view: list[Data] = field(default_factory=list)
    branches: list[list[Data]] = field(default_factory=list)
    session_id: str | None = None
    count: int = 0
    """Things said so far."""
    drops: bool = False
    """Shows no images but the newest."""

    def word(self) -> str:
        """Return a text that no client of another name sends."""
        self.count += 1
        return f"{self.name}.{self.count}"


class World:
    """The expected state, and access to the real one."""

    def __init__(self, gateways: dict[str, Gateway], speaker: Speaker) -> None:
        self.gateways = gateways
        self.speaker = speaker
        self.logs: dict[tuple[str, str], list[Log]] = {}
        self.versions: dict[tuple[str, str, str], int] = {}
        self.clock = 0
        self.last: tuple[str, Data, dict[str, str]] = ("", {}, {})
        """The last request: tenant, body, headers."""
        self.reply: Data | str = ""
        self.trace: list[str] = []
        """What was asked so far, for whoever reads a failure."""
        speaker.say = lambda _: self.reply

    async def ask(self, person: Person, ask: Ask, reply: Data | str) -> Answer:
        """Send a request as its client, check everything, and let the client show the reply."""
        self.clock += 1
        self.reply, self.speaker.breaks = reply, ask.breaks
        mine = self.logs.setdefault(person.owner, [])
        named = self._find_named(person, ask)
        landings = land([] if ask.match == "off" else mine, ask.sent, ask.system, named=named, mode=ask.mode)
        self.trace.append(f"{person.owner} {person.name} {ask} -> {[one.relations for one in landings]}")
        prompts = len(self.speaker.prompts)
        answer = await self._send(person, ask)
        broken = ask.breaks is not None or ask.hang_up is not None
        # As if the next request came to another server: what this one remembers is tests/edges/test_disconnected_streams.py's affair.
        self.gateways[person.owner[0]].hf.engine.undelivered = UndeliveredReplies()
        if not broken:
            assert answer.status == 200, answer.body
        session_id = answer.headers.get("x-session-id") or await self._find_changed(person)
        landing = await self._which(landings, person, session_id)
        log = self._check_landing(person, landing, session_id, ask)
        if not broken:
            assert answer.session["reconciled"] in landing.relations, answer.session
            assert (answer.session.get("edited_at") is not None) == landing.retires, answer.session
        await self._check(person, log, landing, broken=broken)
        self._check_prompt(self.speaker.prompts[prompts:], ask, landing)
        person.session_id, person.view = log.id, list(ask.view)
        seen = answer.message if answer.status == 200 and answer.body else {}
        if broken:
            seen.pop("tool_calls", None)  # no client shows a partial call
            if seen.get("content") and self.clock % 2:  # the last word that was sent need not have been shown
                seen["content"] = " ".join(seen["content"].split()[:-1])
        if seen.get("content") or seen.get("tool_calls"):
            person.view.append({**seen, "role": "assistant"})
        return answer

    async def again(self, person: Person, ask: Ask, first: Answer, reply: Data | str) -> None:
        """Send the same request again: an answered one gets the same answer, an unanswered one is answered now."""
        tenant, body, headers = self.last
        log = next(log for log in self.logs[person.owner] if log.id == person.session_id)
        before, prompts, self.reply = log.messages(log.live), len(self.speaker.prompts), reply
        broken = ask.breaks is not None or ask.hang_up is not None
        answer = await self.gateways[tenant]("POST", "/v1/chat/completions", body, headers)
        self.trace.append(f"again -> {answer.body!r}")
        assert (answer.status, answer.session_id) == (200, log.id), answer.body
        if not broken:
            assert answer.session["reconciled"] == "replayed"
            assert read_content(answer.message) == read_content(first.message)
            assert len(self.speaker.prompts) == prompts
            assert await self._versions() == self.versions
            return
        if before[-1]["role"] == "assistant":
            before.pop()  # what arrived of the first reply makes room
        finished = len(self.speaker.prompts) == prompts  # the client disconnected only before the last bytes
        await self._check(person, log, Landing(log, set(), before), broken=finished)
        person.view = [*ask.view, {**answer.message, "role": "assistant"}]

    async def _which(self, landings: list[Landing], person: Person, session_id: str) -> Landing:
        """Of what the rules leave open that which happened; what they want first where it is none of it."""
        if len(landings) == 1:
            return landings[0]
        tenant, user = person.owner
        live = [
            read_content(to_chat_message(entry.message)) for entry in await self.gateways[tenant].log(session_id, user)
        ]
        known = {log.id for log in self.logs[person.owner]}
        there = [one for one in landings if (session_id not in known if one.log is None else one.log.id == session_id)]
        fits = [
            one
            for one in there
            if len(live) <= len(one.live) + 1
            and live[: len(one.live)] == [read_content(message) for message in one.live]
        ]
        return (fits or there or landings)[0]

    def _find_named(self, person: Person, ask: Ask) -> Log | None:
        if not ask.named or person.session_id is None:
            return None
        return next(log for log in self.logs[person.owner] if log.id == person.session_id)

    async def _send(self, person: Person, ask: Ask) -> Answer:
        tenant, user = person.owner
        system = [{"role": "system", "content": ask.system}] if ask.system else []
        body: Data = {"model": "m", "messages": [*system, *ask.sent], "user": user, "stream": ask.stream}
        if ask.named and person.session_id:
            body["session_id"] = person.session_id
        if ask.mode != "auto":
            body["session_mode"] = ask.mode
        if ask.match != "on":
            body["session_match"] = ask.match
        # What `auto` remembers of a client program is tested in tests/edges/test_session_mode.py: here no program sends both.
        whole = any(message["role"] == "assistant" for message in ask.sent)
        headers = {"user-agent": "transcripts" if whole else "deltas"}
        if ask.key:
            headers["idempotency-key"] = ask.key
        self.last = tenant, body, headers
        return await self.gateways[tenant]("POST", "/v1/chat/completions", body, headers, hang_up=ask.hang_up)

    def _check_landing(self, person: Person, landing: Landing, session_id: str, ask: Ask) -> Log:
        """Check that the request came to the session that the rules name."""
        mine = self.logs[person.owner]
        if landing.log is not None:
            assert session_id == landing.log.id, (session_id, landing.log.id)
            return landing.log
        assert session_id not in {log.id for logs in self.logs.values() for log in logs}, "not a new session"
        log = Log(person.owner, session_id, system=ask.system)
        mine.append(log)
        return log

    async def _find_changed(self, person: Person) -> str:
        """Return the one session of the client that changed: a client that disconnected early did not learn its id."""
        now = await self._versions()
        (found,) = [key for key, version in now.items() if self.versions.get(key) != version]
        assert found[:2] == person.owner
        return found[2]

    async def _versions(self) -> dict[tuple[str, str, str], int]:
        found: dict[tuple[str, str, str], int] = {}
        for tenant, gateway in self.gateways.items():
            page = await gateway.hf.sessions(limit=1000)
            assert not page.has_more
            found |= {(tenant, one.user_id, one.id): one.version for one in page.sessions}
        return found

    async def _check(self, person: Person, log: Log, landing: Landing, *, broken: bool) -> None:
        """Check that the log is as expected, nothing of it is lost, and no other session has changed."""
        tenant, user = person.owner
        now = await self._versions()
        before, self.versions = self.versions, now
        changed = {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
        assert changed <= {(tenant, user, log.id)}, changed
        gateway = self.gateways[tenant]
        entries = await gateway.log(log.id, user, retired=True)
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        there = {entry.seq: to_chat_message(entry.message) for entry in entries}
        for seq, entry in log.entries.items():
            assert there.get(seq) == entry.message, f"{seq} is lost or changed"
        live = [entry for entry in entries if entry.retired_by is None]
        found = [read_content(to_chat_message(entry.message)) for entry in live]
        wanted = [read_content(message) for message in landing.live]
        replied = read_content(
            {"role": "assistant", **({"content": self.reply} if isinstance(self.reply, str) else self.reply)}
        )
        if not broken:
            assert found == [*wanted, replied]
        else:
            assert found[: len(wanted)] == wanted
            assert len(found) <= len(wanted) + 1
            if len(found) > len(wanted):
                assert found[-1][0] == "assistant"
                assert replied[1].startswith(found[-1][1])
        self._sync(log, live)

    def _sync(self, log: Log, live: list[Any]) -> None:
        log.live = tuple(entry.seq for entry in live)
        for at, entry in enumerate(live):
            if entry.seq not in log.entries:
                cut = bool((entry.metadata or {}).get("interrupted"))
                log.entries[entry.seq] = Entry(entry.seq, to_chat_message(entry.message), log.live[: at + 1], cut)
        log.used = self.clock

    def _check_prompt(self, prompts: list[list[Data]], ask: Ask, landing: Landing) -> None:
        """Check that the prompt is valid, is the live path, and ends with the user's messages."""
        for prompt in prompts:
            assert refused(prompt) == []
            said_last = next((one for one in reversed(ask.sent) if one["role"] == "user"), None)
            if said_last is not None:
                assert text(said_last) in [text(one) for one in prompt if one["role"] == "user"]
            shown = [read_content(one) for one in prompt if one["role"] not in ("system", "developer") and visible(one)]
            wanted = [read_content(one) for one in landing.live if visible(one)]
            # Results without their call are described in text, in one more message.
            rest = iter(shown)
            assert all(one in rest for one in wanted)

    async def verify(self) -> None:
        """Check every chain of digests."""
        for logs in self.logs.values():
            for log in logs:
                tenant, user = log.owner
                session = await self.gateways[tenant].hf.store.get(SessionRef(user, log.id))
                await self.gateways[tenant].hf.handle(session).verify()


class Ticks:
    """A clock that advances whenever it is read."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        self.now += 10
        return self.now


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    """Open both tenants on one store."""
    speaker, clock = Speaker(lambda _: ""), Ticks()

    def roster() -> Roster:
        return Roster({"default": Llm(name="default", model="gpt-4o", client=speaker)})

    first, second = TENANTS
    async with (
        Holdfast("sqlite://:memory:", tenant=first, roster=roster(), clock=clock, **settings) as one,
        HoldfastOn(one.store.for_tenant(second), roster=roster(), clock=clock, **settings) as other,
    ):
        yield World({first: Gateway(one, speaker), second: Gateway(other, speaker)}, speaker)
