"""Clients that name no session, many at once, and a model that knows whose request it answers.

Some name no user either: each of their requests gets a session of its own, and a retry may run the turn again.

Words of a client's own carry its name, and so do the results of tools that only the gateway sees. So whatever the model is sent,
and whatever a session has, shows whose it is. Most words are common to all clients, and equal words get equal replies.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from random import Random
from typing import Any

from holdfast.errors import ModelUnavailable
from holdfast.models.collect import to_chunks
from holdfast.wire.openai import to_chat_message
from tests.service.simulator.gateway import CHAT, Answer, Gateway
from tests.unit.dialect_rules import openai as refused

Data = dict[str, Any]
COMMON = ("Hi", "refund policy?", "thanks")
BALANCE = "my balance?"
RECENT = 8
"""Messages that a client sends which leaves out the older ones."""
_OWNER = re.compile(r"<(\w+)\.\d+>")
_asked: ContextVar[Question] = ContextVar("asked")


def owners(words: object) -> set[str]:
    """Return the clients whose own words are in something."""
    return set(_OWNER.findall(str(words)))


class Question:
    """One thing that a client asks, over all attempts at it.

    Attributes:
        client: whose it is.
        calls: calls of the model so far.
        lookups: calls of the tool so far.
        reached: set when the model is called.
        breaks: chunks after which the next answer breaks off; None: not at all.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.calls = self.lookups = 0
        self.reached = asyncio.Event()
        self.breaks: int | None = None


class Model:
    """Answers equal words equally, and looks up balances with a tool of the gateway; refuses to see a stranger's words."""

    name = "model"

    async def stream(self, request: Data, *, headers: Mapping[str, str] | None = None) -> AsyncIterator[Data]:
        """See `Model.stream`."""
        question, messages = _asked.get(), request["messages"]
        question.calls += 1
        question.reached.set()
        assert owners(messages) <= question.client.owns, f"{question.client.name} was answered from {messages}"
        assert refused(messages) == []
        for _ in range(question.client.chance.randrange(8)):
            await asyncio.sleep(0)
        last = messages[-1]
        message: Data = {"role": "assistant", "content": f"re {last['content']}"}
        if last["role"] == "tool":
            message["content"] = "It is looked up."
        elif last["content"] == BALANCE:
            call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        breaks, question.breaks = question.breaks, None
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        for at, chunk in enumerate(to_chunks({"id": "x", "model": "m", "choices": [choice]}, by_word=True)):
            if at == breaks:
                raise ModelUnavailable("the model went away")
            yield chunk
            await asyncio.sleep(0)

    async def close(self) -> None:
        """See `Model.close`."""


async def look_up() -> str:
    """Look the balance up. The result is the user's or the unnamed client's own, and never shown to it."""
    question = _asked.get()
    question.lookups += 1
    return f"balance <{question.client.user or question.client.name}.0>"


class Client:
    """A client that resends its history and names no session. All have the same address.

    Args:
        gateway: the gateway.
        name: of the client; in its own words.
        seed: of its choices.
        user: named in its requests; None: it is not identified.
    """

    def __init__(self, gateway: Gateway, name: str, seed: int, *, user: str | None = None) -> None:
        self.gateway = gateway
        self.name = name
        self.user = user
        self.chance = Random(seed)
        self.owns = {name} if user is None else {name, user}
        self.history: list[Data] = []
        self.trace: list[str] = []
        self._count = 0

    async def live(self, steps: int) -> None:
        """Take some steps, each a question with its answer."""
        for _ in range(steps):
            step = self.chance.choice(STEPS)
            self.trace.append(step.__name__)
            await step(self)
            await asyncio.sleep(0)

    # -- steps -----------------------------------------------------------------

    async def go_on(self) -> None:
        """Ask something new."""
        self._say()
        await self._ask(self.history)

    async def send_recent(self) -> None:
        """Ask something new, and leave out the older messages."""
        self._say()
        await self._ask(self.history[-RECENT:])

    async def edit(self) -> None:
        """Say an earlier message otherwise; what came after it is dropped."""
        places = [at for at, message in enumerate(self.history) if message["role"] == "user"]
        del self.history[self.chance.choice(places or [0]) :]
        await self.go_on()

    async def regenerate(self) -> None:
        """Have the last reply made again."""
        if not self.history:
            return
        self.history.pop()
        await self._ask(self.history)

    async def time_out(self) -> None:
        """Give up before the answer comes, and send the request again, as the official SDKs do."""
        self._say()
        question, leave = self._question(), asyncio.Event()
        first = asyncio.create_task(self._send(self.history, count=0, leave=leave))
        await question.reached.wait()
        leave.set()
        answer = await self._send(self.history, count=1)
        await first
        self._take(question, answer)

    async def send_twice(self) -> None:
        """Send the request again while the first attempt is still being answered."""
        self._say()
        question = self._question()
        first = asyncio.create_task(self._send(self.history, count=0))
        await question.reached.wait()
        again = await self._send(self.history, count=1)
        assert (await first).message["content"] == again.message["content"]
        self._take(question, again)

    async def send_after_failure(self) -> None:
        """Send the request again because the model had failed."""
        self._say()
        question = self._question()
        question.breaks = 0
        assert (await self._send(self.history, count=0)).status >= 500
        question.calls = 0
        self._take(question, await self._send(self.history, count=1))

    async def lose_the_end(self) -> None:
        """Show what arrived of a reply that broke off, and go on from there."""
        self._say(self.chance.choice(COMMON))
        question = self._question()
        question.breaks = 2
        answer = await self._send(self.history, stream=True)
        self.history.append({"role": "assistant", "content": answer.message["content"]})
        await self.go_on()

    # -- asking ----------------------------------------------------------------

    def _say(self, text: str | None = None) -> None:
        self._count += 1
        own = f"<{self.name}.{self._count}>"
        text = text or self.chance.choice([*COMMON, BALANCE, own, own])
        self.history.append({"role": "user", "content": text})

    def _question(self) -> Question:
        question = Question(self)
        _asked.set(question)
        return question

    async def _ask(self, messages: list[Data]) -> None:
        question = self._question()
        self._take(question, await self._send(messages))

    async def _send(
        self,
        messages: list[Data],
        *,
        count: int | None = None,
        stream: bool = False,
        leave: asyncio.Event | None = None,
    ) -> Answer:
        body: Data = {"model": "m", "messages": list(messages), "stream": stream}
        if self.user is not None:
            body["user"] = self.user
        # Its own time limit has passed whenever it leaves.
        headers = {} if count is None else {"x-stainless-retry-count": str(count), "x-stainless-timeout": "0"}
        return await self.gateway("POST", CHAT, body, headers, leave=leave)

    def _take(self, question: Question, answer: Answer) -> None:
        """Show the answer: the turn of a named user was run once.

        A named user's session is edited in place, so results of tools may still be there; and the user's other device may have
        asked the very same, and left before the answer came.
        """
        assert answer.status == 200, answer.body
        looked = self.history[-1]["content"] == BALANCE
        ran, once = (question.calls, question.lookups), (1 + looked, int(looked))
        assert self.user is None or ran <= once, f"a turn was run {ran} instead of {once} times"
        self.history.append({"role": "assistant", "content": answer.message["content"]})


STEPS = (
    *(Client.go_on,) * 4,
    Client.send_recent,
    Client.edit,
    Client.regenerate,
    Client.time_out,
    Client.send_twice,
    Client.send_after_failure,
    Client.lose_the_end,
)


async def check_sessions(gateway: Gateway) -> int:
    """Check every session: its words are one client's, and it is not empty. Returns how many there are.

    An identified user's devices may edit one session in turns; then its live path is one device's. A request that failed leaves a session
    without a reply, also of a named user: the retry may get the reply of an equal request of the other device, which is newer.
    """
    page = await gateway.hf.sessions(limit=1000)
    assert not page.has_more
    for session in page.sessions:
        entries = await gateway.log(session.id, session.user_id, retired=session.user_id == "default")
        words = [to_chat_message(entry.message) for entry in entries]
        assert "user" in {message["role"] for message in words}, f"an empty session: {words}"
        assert len(owners(words) - {session.user_id}) <= 1, f"several clients in one session: {words}"
    return len(page.sessions)
