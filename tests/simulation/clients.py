"""Clients as people use them. Each keeps what it believes, and demands it of its next prompt."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.transport import Answer
from tests.simulation.world import GREETING, Ask, Lost, Row, Seen, World, read_text

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
TOOL = {"type": "function", "function": {"name": "click", "parameters": {"type": "object", "properties": {}}}}
TIMEOUT = 40.0
"""Seconds after which a client gives up."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The kind of a client.

    Attributes:
        name: of the kind.
        sends: the messages that it sends: `whole`, `new`, `last`, or `ends` (head and tail).
        named: True if it names its session.
        identified: True if it names its user.
        api: of the gateway.
        does: names of the methods of `Client` that are its steps.
        devices: number of clients on the same session, or with the same beginning.
        uses_tools: True if it runs a tool itself.
    """

    name: str
    sends: str = "whole"
    named: bool = False
    identified: bool = True
    api: str = "chat"
    does: Sequence[str] = ("say",)
    devices: int = 1
    uses_tools: bool = False

    @property
    def exact(self) -> bool:
        """True if its prompts have nothing that it has not sent or said before."""
        return self.sends == "whole" or self.api == "responses"


EDITS = ("say", "say", "edit", "regenerate", "abort", "go_back", "double_click", "job", "reuse_key")
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
KINDS = (
    Kind(name="delta", sends="new", named=True, does=("say", "abort", "double_click", "reuse_key"), uses_tools=True),
    Kind(name="nobody's delta", sends="new", named=True, identified=False, does=("say", "abort")),
    Kind(name="devices", sends="new", named=True, devices=2, does=("say", "abort")),
    Kind(name="named whole", named=True, does=EDITS, uses_tools=True),
    Kind(name="whole", does=EDITS, uses_tools=True),
    Kind(name="two chats", does=EDITS, devices=2),
    Kind(name="nobody's whole", identified=False, does=EDITS, uses_tools=True),
    Kind(name="tabs", does=("say", "say", "abort", "edit"), devices=2),
    Kind(name="named tabs", named=True, does=("say", "say", "abort", "edit"), devices=2),
    Kind(name="last", sends="last"),
    Kind(name="named last", sends="last", named=True, does=("say", "say", "abort")),
    Kind(name="ends", sends="ends", named=True, does=("say", "abort")),
    Kind(name="by response", sends="new", api="responses", does=("say", "say", "branch")),
    Kind(name="nobody's responses", sends="new", api="responses", identified=False, does=("say", "say", "branch")),
    Kind(name="scope", api="messages", does=("say", "say", "edit", "regenerate"), devices=2),
)


class Client:
    """A client.

    Args:
        world: the world.
        name: its own.
        person: whose it is.
        kind: what kind it is.
        chance: decides what it does.
        other: the client whose beginning it shares, for tabs.
    """

    def __init__(
        self, world: World, name: str, person: str, kind: Kind, chance: Random, *, session: str, other: Client | None
    ) -> None:
        self.world, self.name, self.person, self.kind, self.chance = world, name, person, kind, chance
        self.view: list[Row] = []
        """The conversation that it believes in."""
        self.unheard: set[str] = set()
        self.response_id = ""
        self._session, self._other = session, other
        self.parts: dict[str, int] = {}
        """Replies of which it has only the beginning, each with the number of breakdowns before it."""
        self._branches: list[tuple[list[Row], str]] = []
        """The conversation before it went another way, and the last response then."""
        self._retries = chance.random() < 0.5
        self._keys = chance.random() < 0.4
        self._answered = ""
        """A key whose request was answered."""

    async def live(self, steps: int) -> None:
        """Take steps, each a message with its answer."""
        for _ in range(steps):
            await asyncio.sleep(self.chance.choice([0.1, 1, 5]))
            if self.world.violation is not None:
                return
            if self._other is not None and "tabs" in self.kind.name and not self.view:
                self.view, self.unheard = list(self._other.view), self._other.unheard
                self.parts |= self._other.parts
                if not any(one["role"] == "assistant" for one in self.view):
                    self.view = []
                    continue
            step: Callable[[], Any] = getattr(self, self.chance.choice(self.kind.does))
            await step()

    # -- steps -------------------------------------------------------------------

    async def say(self) -> None:
        """Say something new."""
        await self._ask(self.view, [self._add_picture(self._make_message())])

    async def edit(self) -> None:
        """Change an earlier message, and drop what came after it."""
        places = [at for at, one in enumerate(self.view) if one["role"] == "user" and at >= self.kind.named]
        if places:
            self._keep_branch()
            at, new = self.chance.choice(places), self._make_message()
            is_answered = at and self.view[at - 1]["role"] == "assistant" and self.view[at + 1 :]
            if self.kind.name == "named whole" and is_answered and read_text(self.view[at]) in self.world.pictured:
                self.world.pictured.add(read_text(new))  # it has only the text, so the picture stays
            await self._ask(self.view[:at], [new])

    async def regenerate(self) -> None:
        """Have the last reply made again."""
        places = [at for at, one in enumerate(self.view) if one["role"] == "user"]
        if places and places[-1] >= self.kind.named and self.view[-1]["role"] == "assistant":
            self._keep_branch()
            await self._ask(self.view[: places[-1]], [self.view[places[-1]]])

    async def go_back(self) -> None:
        """Continue what it had before an edit."""
        if self._branches:
            branch = self._branches.pop(self.chance.randrange(len(self._branches)))
            self._keep_branch()
            self.view, self.response_id = branch
        await self.say()

    async def branch(self) -> None:
        """Continue after an earlier response, and come back to this one later."""
        if self.chance.random() < 0.5:
            await self.go_back()
            return
        self._keep_branch()
        await self.say()

    async def abort(self) -> None:
        """Stop a reply."""
        ends: Row = {"hang_up": self.chance.randint(1, 6), "stream": True, "finish": self.chance.random() < 0.5}
        await self._ask(self.view, [self._make_message()], **ends)

    async def double_click(self) -> None:
        """Send a message twice at once."""
        new = self._make_message()
        if self.kind.sends == "new" and not self._keys:
            self.world.repeatable.add(new["content"])
        key, before = self._make_key(), list(self.view)
        ask, body = self._make_ask(before, [new], key, twice=True), self._make_body(before, [new])
        first = asyncio.ensure_future(self._ask(before, [new], key=key))
        await asyncio.sleep(self.chance.choice([0, 0.05, 1]))
        if before == self.view:
            await self._attempt(ask, body, key, 0)
        await first

    async def reuse_key(self) -> None:
        """Send another message with the key of an earlier one, by mistake."""
        if self._answered and self.view:
            new, key = [self._make_message()], self._answered
            await self._attempt(self._make_ask([], new, key), self._make_body([], new), key, 0, refused=True)

    async def job(self) -> None:
        """Ask for a title beside the chat."""
        task = [{"role": "user", "content": f"### Task: Generate it:\n<chat_history>{self._make_message()['content']}"}]
        ask = self._make_ask([], task, None)
        self.world.unlisted.add(task[0]["content"])
        body = {**self._make_body([], task)}
        body.pop("session_id", None)
        job = asyncio.ensure_future(self._attempt(ask, body, None, 0))
        await self.say()
        await job

    # -- asking --------------------------------------------------------------------

    def _make_message(self) -> Row:
        greets = not self.view and self.kind.sends == "whole" and not self.kind.named and self.chance.random() < 0.5
        text = GREETING[0] if greets else f"[{self.person}.{self.world.count()}] please"
        if not (self.kind.named or self.kind.identified or self.kind.api == "messages" or greets):
            self.world.unlisted.add(text)
        return {"role": "user", "content": text}

    def _add_picture(self, message: Row) -> Row:
        is_able = "edit" in self.kind.does and self.kind.identified and self.kind.api == "chat"
        if not is_able or message["content"] == GREETING[0] or self.chance.random() > 0.3:
            return message
        self.world.pictured.add(message["content"])
        return {**message, "content": [{"type": "text", "text": message["content"]}, PICTURE]}

    def _make_key(self) -> str | None:
        return f"key-of-{self.name.replace(' ', '-')}-{self.world.count()}" if self._keys else None

    def _keep_branch(self) -> None:
        self._branches.append((list(self.view), self.response_id))

    def _make_ask(self, base: Sequence[Row], new: Sequence[Row], key: str | None, *, twice: bool = False) -> Ask:
        is_sent = self.kind.sends == "whole"
        seen = [
            Seen(one["role"], text, text in self.parts, math.inf if is_sent else self.parts.get(text, math.inf))
            for one in (*base, *new)
            if one["role"] in ("user", "assistant") and (text := read_text(one))
        ]
        results = [one["content"] for one in new if one["role"] == "tool"]
        is_delta = self.kind.named and not any(one["role"] == "assistant" for one in base)
        if is_delta and (twice or base or self._session in self.world.begun):
            # Without a reply, a whole history is a delta: it is appended, and its session has more from then on.
            self.world.repeatable |= {read_text(one) for one in (*base, *new)}
            self.world.loose.add(self._session)
        self.world.begun.add(self._session)
        is_common = key is not None and read_text(new[0]) == GREETING[0]  # others may have gone on from its cut reply
        exact = self.kind.exact and self._session not in self.world.loose and not is_common
        forks = self.kind.api == "responses" and not (
            key or (self._retries and self.kind.identified)
        )  # if its answer is lost
        is_shared = self.kind.devices > 1 or forks
        return Ask(self.name, self.person, seen, exact, results, key, is_shared, self.unheard)

    def _make_body(self, base: Sequence[Row], new: Sequence[Row]) -> Row:
        kind, sent = self.kind, [*base, *new]
        if kind.named and base and base[-1]["role"] == "assistant":  # else the pictures help to find the session
            sent = [*map(_drop_picture, base), *new]
        if kind.sends == "new":
            sent = list(new)
        elif kind.sends == "last" and len(base) > 4:
            sent = [*base[-4:], *new]
        elif kind.sends == "ends" and len(base) > 8:
            sent = [*base[:2], *base[-4:], *new]
        body: Row = {"model": "default", "input" if kind.api == "responses" else "messages": sent}
        if kind.identified and kind.api != "messages":
            body["user"] = self.person
        if kind.named:
            body["session_id"] = self._session
        if kind.uses_tools:
            body["tools"] = [TOOL]
        if kind.api == "responses" and self.response_id:
            body["previous_response_id"] = self.response_id
        if kind.api == "messages":
            who = {"device_id": self.person, "account_uuid": "", "session_id": self._session}
            body |= {"max_tokens": 100, "metadata": {"user_id": json.dumps(who)}}
        return body

    async def _ask(
        self, base: Sequence[Row], new: Sequence[Row], *, key: str | None = None, finish: bool = False, **ends: Any
    ) -> None:
        """Send messages after what it believes, until they are answered or it gives up."""
        base, new = list(base), list(new)
        key = key or self._make_key()
        ask, body = self._make_ask(base, new, key), self._make_body(base, new)
        if ends.pop("stream", False):
            body |= {"stream": True, "on_disconnect": "finish" if finish else "cut"}
        tries = self.chance.choice([1, 2, 4])
        for attempt in range(tries):
            if attempt:
                self._note_repetition(ask, base, new)
                await asyncio.sleep(self.chance.choice([0.5, 2, 8]))
            troubles = self.world.breakdowns
            reply = await self._attempt(ask, body, key, attempt, **(ends if attempt == 0 else {}))
            if reply is None:
                continue
            text, is_part = read_text(reply), bool(reply.pop("part", False))
            if is_part:
                self.parts[text] = troubles
                self.view = [*base, *new, *([reply] if text else [])]
                if not text and self.kind.sends != "whole":
                    break  # the turn may not have begun
                return
            self.view = [*base, *new, reply]
            if reply.get("tool_calls"):
                await self._run_tools(reply)
            return
        self.view = base if self.chance.random() < 0.7 or self.kind.sends != "whole" else [*base, *new]
        if any(one["role"] == "tool" for one in new):
            self.view = base[: max(at for at, one in enumerate(base) if one["role"] == "user")]

    def _note_repetition(self, ask: Ask, base: Sequence[Row], new: Sequence[Row]) -> None:
        """Note the texts that the log may rightly have twice, as a delta that does not say that it repeats itself is new."""
        says_so = ask.key or (self._retries and self.kind.identified and self.kind.devices == 1)
        is_first = self.kind.named and not any(one["role"] == "assistant" for one in base)
        if not says_so and (is_first or (self.kind.sends == "new" and self.kind.api == "chat")):
            self.world.repeatable |= {read_text(one) for one in (*base, *new)}
            self.world.loose.add(self._session)
            ask.exact = False

    async def _run_tools(self, reply: Row) -> None:
        results = [
            {"role": "tool", "tool_call_id": one["id"], "content": f"[{self.person}.{self.world.count()}] done"}
            for one in reply["tool_calls"]
        ]
        await self._ask(self.view, results)

    async def _attempt(
        self, ask: Ask, body: Row, key: str | None, attempt: int, *, hang_up: int | None = None, refused: bool = False
    ) -> Row | None:
        """Send a request once. Return its reply, with `part` if it broke off; None: there was none, also because it is `refused`."""
        world, troubles = self.world, self.world.misfortunes
        headers = (
            {"x-stainless-retry-count": str(attempt), "x-stainless-timeout": str(int(TIMEOUT))} if self._retries else {}
        )
        if key is not None:
            headers["idempotency-key"] = key
        name = "input" if self.kind.api == "responses" else "messages"
        others = {
            at: one
            for at, one in {**body, **headers}.items()
            if at not in (name, "tools", "model", "x-stainless-timeout")
        }
        world.note(f"{self.name} > {[read_text(one) or one['role'] for one in body[name]]} {others}")
        try:
            answer = await world.send(ask, PATHS[self.kind.api], body, headers, hang_up=hang_up, patience=TIMEOUT)
        except Lost:
            world.note(f"{self.name} < nothing")
            return None
        if world.is_rough and world.chance.random() < 0.03:
            world.note(f"{self.name} < lost {answer.status}")
            return None
        world.note(f"{self.name} < {_describe(self.kind.api, answer)}")
        if answer.status != 200 or refused:
            may_share = self.kind.devices > 1 or (
                self.view and read_text(self.view[0]) == GREETING[0]
            )  # may go on in its session
            is_gone = answer.status == 409 and key is not None and b"turn_gone" in answer.body and may_share
            fails = answer.status >= 500 and world.misfortunes > troubles
            allowed = fails or (answer.status == 422 if refused else is_gone)
            world.demand(allowed, f"status: {self.name} is answered {answer.status}: {answer.body!r}")
            return None
        return self._take(ask, body, answer, is_whole=_is_whole(answer))

    def _take(self, ask: Ask, body: Row, answer: Answer, *, is_whole: bool) -> Row | None:
        """Return the reply of an answer, and note what was acknowledged."""
        world = self.world
        world.check_owner(ask, answer.body)
        reply = _read_reply(self.kind.api, answer)
        if not is_whole:
            return {**reply, "part": True}
        if self.kind.api == "responses":
            self.response_id = answer.json["id"]
        text = read_text(reply)
        self.unheard.discard(text)
        if ask.key and not reply.get("tool_calls"):
            world.demand(
                ask.told in (None, text), f"two replies for a key: {self.name}: {ask.key}: {ask.told!r}, {text!r}"
            )
            ask.told, self._answered = text, ask.key
        user = self.person if self.kind.identified else "default"
        sent = [read_text(one) for one in body.get("messages") or body["input"]]
        if self.kind.api != "messages":
            world.acknowledged += [(user, answer.session_id, one) for one in (sent[-1], text) if one]
        return reply


def _drop_picture(message: Row) -> Row:
    return {**message, "content": read_text(message)} if message["role"] == "user" else message


def _describe(api: str, answer: Answer) -> str:
    """Return an answer for the trace."""
    if answer.status != 200:
        return f"{answer.status} {answer.body!r}"
    told = {} if answer.streamed and not answer.events else answer.last
    relation, reply = told.get("session", {}).get("reconciled"), _read_reply(api, answer)
    return f"200 {answer.headers.get('x-session-id')} {relation} {reply}{'' if _is_whole(answer) else ' (broken)'}"


def _is_whole(answer: Answer) -> bool:
    """Return True if an answer is complete, and not cut."""
    if not answer.streamed:
        return bool(answer.body)
    events = answer.events
    return b"[DONE]" in answer.body and not any("error" in one for one in events)


def _read_reply(api: str, answer: Answer) -> Row:
    """Return the assistant's message of an answer."""
    if api == "messages":
        text = "".join(part.get("text", "") for part in answer.json["content"])
    elif api == "responses":
        text = "".join(part.get("text", "") for item in answer.json["output"] for part in item.get("content", ()))
    else:
        message = answer.message
        kept = {name: message[name] for name in ("content", "tool_calls") if message.get(name)}
        return {"role": "assistant", **({} if "tool_calls" in kept else {"content": ""}), **kept}
    return {"role": "assistant", "content": text}
