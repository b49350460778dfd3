"""Clients as people use them, for tests of where a request belongs. Each of them keeps what it believes."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from holdfast.testing import Gate, Reply
from tests.behaviour.kit.gateway import Served, gateway
from tests.behaviour.kit.messages import assistant, texts, user
from tests.behaviour.kit.seams import bearer, count_connections, until

Row = dict[str, Any]
PATHS: Final = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
"""The paths of the APIs."""
SERVERS: Final = ("shared key", "single_user: false")
"""Servers on which a request without a user may be anyone's: one with a key for all its users, and one that says so."""

ADA: Final = {"user": "ada"}
KEY: Final = {"idempotency-key": "k"}
FIRST: Final = {"x-stainless-retry-count": "0"}
AGAIN: Final = {"x-stainless-retry-count": "1"}
DAY: Final = 24 * 3600 * 1000
"""Milliseconds."""


def reply_to(body: Mapping[str, Any]) -> str:
    """Return the same reply to the same question, as with a cache or temperature 0."""
    return f"re: {body['messages'][-1]['content']}"


def counting(gate: Gate | None = None, *held: str) -> Callable[[Row], Reply]:
    """Return a model that never gives the same reply twice. It answers the questions in `held` when the gate opens."""
    numbers = itertools.count(1)

    def answer(body: Row) -> Reply:
        said = body["messages"][-1]["content"]
        return Reply(text=f"{next(numbers)}. {said}", hold=gate if said in held else None)

    return answer


def holding(gate: Gate, *questions: str) -> Callable[[Row], Reply]:
    """Return a model that answers these questions when the gate opens, and all others at once."""
    return lambda body: Reply(text=reply_to(body), hold=gate if body["messages"][-1]["content"] in questions else None)


@asynccontextmanager
async def people(server: str, script: Any = reply_to, *config: str, **settings: Any) -> AsyncIterator[Served]:
    """Run a gateway for people who do not say who they are; `server` is one of `SERVERS`."""
    shared = server == "shared key"
    async with gateway(script, *config, *([] if shared else ["gateway: {single_user: false}"]), **settings) as served:
        if shared:
            served.http.headers.update(bearer(await served.create_key()))
        yield served


async def logs(served: Served) -> dict[str, list[Any]]:
    """Return the live texts of every listed session."""
    rows = await served.rest.sessions(limit=100)
    return {row["id"]: texts(await served.entries(row["id"], row["user_id"])) for row in rows}


def prompt(served: Served) -> list[Any]:
    """Return the texts of the newest prompt."""
    return texts(served.sent["messages"])


def prompts(served: Served) -> list[list[Any]]:
    """Return the texts of all prompts."""
    return [texts(request.body["messages"]) for request in served.upstream.requests]


async def retired(client: Client) -> list[Any]:
    """Return the retired texts of a client's session."""
    entries = await client.served.entries(client.session_id, client.owner, retired=True)
    live = {entry["seq"] for entry in await client.served.entries(client.session_id, client.owner)}
    return texts(entry for entry in entries if entry["seq"] not in live)


def codes(told: Row) -> list[str]:
    """Return the codes of the warnings of an answer."""
    return [one["code"] for one in told["session"].get("warnings", ())]


async def at_once(*sent: Awaitable[Row]) -> list[Row]:
    """Send requests at the same moment; return their answers."""
    return await asyncio.gather(*sent)


def only_new(history: list[Row]) -> list[Row]:
    """Return what follows the last reply."""
    replies = [at for at, message in enumerate(history) if message["role"] == "assistant"]
    return history[replies[-1] + 1 :] if replies else list(history)


class Client:
    """A client that sends its whole history, or the part of it that `keeps` returns. `fields` are in each body."""

    def __init__(self, served: Served, api: str = "chat", keeps: Any = list, **fields: Any) -> None:
        self.served, self.api, self.keeps = served, api, keeps
        self.path = PATHS[api]
        self.fields = {"model": "default", **fields}
        self.history: list[Row] = []
        """What the client believes."""
        self.session_id = self.response_id = ""
        self.owner: str = self.fields.get("user", "default")
        """The user of its sessions."""
        self.headers: Mapping[str, str] = {}
        """Headers of each request."""

    def copy(self) -> Self:
        """Return another window, which has the same conversation."""
        made = copy.copy(self)
        made.history = list(self.history)
        return made

    @property
    def seen(self) -> list[Any]:
        """The texts of its history."""
        return texts(self.history)

    async def say(self, *messages: Row | str, **options: Any) -> Row:
        """Send messages; the options are those of `send`."""
        self.history += [user(one) if isinstance(one, str) else one for one in messages]
        return await self.send(**options)

    async def send(self, status: int = 200, headers: Mapping[str, str] | None = None, **fields: Any) -> Row:
        """Send what it has; return the answer, which has this status."""
        answer = await self.served.http.post(
            self.path, json=self.make_body() | fields, headers={**self.headers, **(headers or {})}
        )
        assert answer.status_code == status, answer.text
        told: Row = answer.json()
        if status == 200:
            self.session_id = told["session_id"]
            self.response_id = told["id"]
            self.history += read_reply(told)
        return told

    async def lose(self, text: str, gate: Gate, heard: str, headers: Mapping[str, str] | None = None) -> Row:
        """Send a message with a stream that is lost after `heard`; return its body. The server finishes the reply then."""
        self.history.append(user(text))
        body = self.make_body() | {"stream": True, "on_disconnect": "finish"}
        async with self.served.http.stream("POST", self.path, json=body, headers=headers) as answer:
            said = ""
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    said += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                if said == heard:
                    break
            self.session_id = answer.headers["x-session-id"]
        self.history.append(assistant(heard))
        await until(lambda: count_connections(self.served.server) == 0)
        gate.open()
        await until(self._has_whole_reply)
        return body

    async def _has_whole_reply(self) -> bool:
        """Return True if the server has stored the reply that the client lost."""
        rows = await self.served.entries(self.session_id, self.owner)
        return bool(rows) and rows[-1]["role"] == "assistant" and rows[-1]["content"] != self.seen[-1]

    def make_body(self) -> Row:
        """Return the body of its next request."""
        name = "input" if self.api == "responses" else "messages"
        limit = {"max_tokens": 100} if self.api == "messages" else {}
        return {**limit, **self.fields, name: self.keeps(self.history)}


class Device(Client):
    """A client that sends only what is new, and names the session."""

    def __init__(self, served: Served, api: str = "chat", **fields: Any) -> None:
        super().__init__(served, api, only_new, **fields)


class ByResponse(Client):
    """A client of the Responses API that sends only what is new, and names the response before it."""

    def __init__(self, served: Served, **fields: Any) -> None:
        super().__init__(served, "responses", only_new, **fields)

    def make_body(self) -> Row:
        return {**super().make_body(), **({"previous_response_id": self.response_id} if self.response_id else {})}


def read_reply(told: Row) -> list[Row]:
    """Return what an answer of any of the three APIs adds to a history."""
    if "choices" in told:
        message = told["choices"][0]["message"]
        return [{name: message[name] for name in ("role", "content", "tool_calls") if message.get(name) is not None}]
    if "output" not in told:
        return [assistant(told["content"])]
    if any(item["type"] != "message" for item in told["output"]):
        return list(told["output"])
    return [assistant("".join(part["text"] for item in told["output"] for part in item["content"]))]
