"""Traffic of clients that talk to an old and a new server of one database in turn."""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
import struct
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import httpx2

from holdfast.testing import Reply

TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
WORDS: Final = [
    "harbour",
    "museum",
    "ticket",
    "invoice",
    "hotel",
    "window",
    "breakfast",
    "meeting",
    "budget",
    "review",
    "garden",
    "printer",
    "passport",
    "weather",
    "bicycle",
    "allergic",
    "shellfish",
    "address",
    "telephone",
    "deadline",
    "contract",
    "oslo",
    "hamburg",
    "lisbon",
    "tuesday",
    "evening",
    "blue",
    "green",
]


def answer(body: dict[str, Any]) -> Reply | str:
    """Answer a model call: call a tool if the newest user message asks for one, and repeat that message otherwise."""
    newest = body["messages"][-1]
    text = _text(newest)
    if "summar" in _text(body["messages"][0]).lower():
        return "The user made remarks about the harbour."
    if newest["role"] == "user" and "[tool]" in text and body.get("tools"):
        return Reply(tool_calls=[("look_up", {"q": text})])
    asked = next((_text(one) for one in reversed(body["messages"]) if one["role"] == "user"), "")
    return f"heard: {asked[-300:]}"


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def make_picture(number: int) -> str:
    """Return a small PNG, different for each number, as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + number.to_bytes(3, "big")
    png = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(row))
    data = b"\x89PNG\r\n\x1a\n" + png + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


class Servers:
    """The servers that clients choose from, and the answers that clients did not expect."""

    def __init__(self, urls: Sequence[str], key: str | None = None) -> None:
        self.urls = list(urls)
        self.requests: Counter[str] = Counter()
        self.problems: list[str] = []
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Limits(keepalive_expiry=2)  # less than the servers' 5 seconds
        self._http = httpx2.AsyncClient(trust_env=False, timeout=60, headers=headers, limits=limits)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(
        self, chance: random.Random, method: str, path: str, *, expect: Sequence[int] = (200, 201), **options: Any
    ) -> Any:
        """Send a request to one of the servers; return the decoded answer, or None if it was not as expected."""
        which = chance.randrange(len(self.urls))
        return await self.send_to(which, method, path, expect=expect, **options)

    async def send_to(
        self, which: int, method: str, path: str, *, expect: Sequence[int] = (200, 201), **options: Any
    ) -> Any:
        """Send a request to a server by its position."""
        kind = path.split("?", maxsplit=1)[0].split("/")[2]
        for _ in range(40):
            response = await self._http.request(method, self.urls[which] + path, **options)
            if response.status_code not in {409, 503} or response.status_code in expect:
                break
            self.requests[f"retry {kind} {which}"] += 1
            await asyncio.sleep(0.1)
        self.requests[f"{method} {kind} {which}"] += 1
        if response.status_code not in expect:
            self.problems.append(f"{which} {method} {path}: {response.status_code} {response.text[:300]}")
            return None
        if "text/event-stream" in response.headers.get("content-type", ""):
            return response.text
        return response.json() if response.content else {}


class Talker:
    """A client with a session of its own, named or found by its messages; it keeps what the servers acknowledged."""

    def __init__(self, servers: Servers, number: int, *, named: bool) -> None:
        self.user = f"user-{number}"
        self.session = f"talk-{number}" if named else None
        self.named = named
        self.acknowledged: list[str] = []
        """Texts of the user, in order."""
        self.history: list[dict[str, Any]] = []
        self.sessions: set[str] = set()
        self.increments = 0
        self.memories: set[str] = set()
        self._servers = servers
        self._chance = random.Random(number)
        self._marker = f"m{number}x"
        self._said = itertools.count()

    async def act(self) -> None:
        """Do one thing."""
        if not self.named:
            await self._match()
            return
        acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self._chat),
            (4, self._stream),
            (3, self._call_tool),
            (3, self._append),
            (2, self._anthropic),
            (2, self._show_picture),
            (2, self._count),
            (1, self._remember),
            (2, self._read),
            (1, self._search),
            (1, self._preview),
            (1, self._pin),
            (1, self._fork),
            (1, self._close),
            (1, self._replace_session),
        ]
        chosen = self._chance.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
        await chosen()

    def _say(self, more: str = "") -> str:
        words = " ".join(self._chance.choices(WORDS, k=self._chance.randint(3, 60)))
        return f"{self._marker}{next(self._said)} {more}{words}"

    async def _send(self, method: str, path: str, **options: Any) -> Any:
        return await self._servers.send(self._chance, method, path, **options)

    def _body(self, text: Any, **more: Any) -> dict[str, Any]:
        return {"session_id": self.session, "user": self.user, "messages": [{"role": "user", "content": text}], **more}

    def _acknowledge(self, text: str, reply: Any) -> None:
        self.acknowledged.append(text)
        self._check_reply(text, reply)

    def _check_reply(self, text: str, reply: Any) -> None:
        said = reply["choices"][0]["message"]["content"]
        if said != f"heard: {text[-300:]}":
            self._servers.problems.append(f"{self.user} got {said!r:.100} for {text!r:.100}")

    async def _chat(self) -> None:
        text = self._say()
        options: Any = {"json": self._body(text), "headers": {"idempotency-key": text.split()[0]}}
        if reply := await self._send("POST", "/v1/chat/completions", **options):
            self._acknowledge(text, reply)
            if self._chance.random() < 0.2:  # the same request again gets the same answer
                again = await self._send("POST", "/v1/chat/completions", **options)
                if again is not None:
                    self._check_reply(text, again)

    async def _stream(self) -> None:
        text = self._say()
        reply = await self._send("POST", "/v1/chat/completions", json=self._body(text, stream=True))
        if reply is not None:
            if "data: [DONE]" not in reply:
                self._servers.problems.append(f"{self.user}: stream without an end: {reply[-300:]}")
            self.acknowledged.append(text)

    async def _call_tool(self) -> None:
        text = self._say("[tool] ")
        reply = await self._send("POST", "/v1/chat/completions", json=self._body(text, tools=TOOLS))
        if reply is None:
            return
        self.acknowledged.append(text)
        calls = reply["choices"][0]["message"].get("tool_calls")
        if not calls:
            self._servers.problems.append(f"{self.user}: no tool call for {text!r:.80}")
            return
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": f"result of {text[:40]}"}
        body = {"session_id": self.session, "user": self.user, "messages": [result], "tools": TOOLS}
        reply = await self._send("POST", "/v1/chat/completions", json=body)
        if reply is not None and reply["choices"][0]["message"]["content"] != f"heard: {text[-300:]}":
            self._servers.problems.append(f"{self.user}: reply after tool: {reply!r:.200}")

    async def _append(self) -> None:
        """Append with an idempotency key, and repeat the request to all servers."""
        text = self._say()
        body = {"messages": [{"role": "user", "content": text}], "user_id": self.user}
        path = f"/v1/sessions/{self.session}/messages?user_id={self.user}"
        body.pop("user_id")
        if await self._send("GET", f"/v1/sessions/{self.session}?user_id={self.user}", expect=(200, 404)) is None:
            return
        if not self.acknowledged:
            return
        first = await self._send("POST", path, json=body, headers={"idempotency-key": text.split()[0]})
        if first is not None:
            self.acknowledged.append(text)
            for which in range(len(self._servers.urls)):
                options: Any = {"json": body, "headers": {"idempotency-key": text.split()[0]}}
                await self._servers.send_to(which, "POST", path, **options)

    async def _anthropic(self) -> None:
        text = self._say()
        body = self._body(text, model="default", max_tokens=500, metadata={"user_id": self.user})
        del body["user"]
        if await self._send("POST", "/v1/messages", json=body) is not None:
            self.acknowledged.append(text)

    async def _show_picture(self) -> None:
        text = self._say()
        picture = {"type": "image_url", "image_url": {"url": make_picture(self._chance.randrange(1 << 20))}}
        body = self._body([{"type": "text", "text": text}, picture])
        if reply := await self._send("POST", "/v1/chat/completions", json=body):
            self._acknowledge(text, reply)

    async def _count(self) -> None:
        """Increment a counter of the session and one of the user."""
        if not self.acknowledged:
            return
        path = f"/v1/users/{self.user}/state"
        if (
            await self._send("POST", path, json={"changes": [{"op": "increment", "key": "user:n", "by": 1}]})
            is not None
        ):
            self.increments += 1

    async def _remember(self) -> None:
        number = len(self.memories)
        fact = f"fact {self._marker} {number}: {' '.join(self._chance.choices(WORDS, k=12))} {zlib.crc32(repr(number).encode())}"
        if made := await self._send("POST", "/v1/memories", json={"user_id": self.user, "content": fact}):
            self.memories.add(made["memory"]["id"] if "memory" in made else made["id"])

    async def _read(self) -> None:
        """Read the log from all servers: they show the same."""
        if not self.acknowledged:
            return
        path = f"/v1/sessions/{self.session}/messages?user_id={self.user}&limit=20&order=desc"
        shown = []
        for which in range(len(self._servers.urls)):
            page = await self._servers.send_to(which, "GET", path)
            shown.append([(one["seq"], one["role"], one.get("content")) for one in page["data"]] if page else None)
        if any(one != shown[0] for one in shown):
            self._servers.problems.append(f"{self.session}: servers show different messages: {shown!r:.600}")

    async def _search(self) -> None:
        """Find a message of a while ago on every server."""
        if len(self.acknowledged) < 8:
            return
        text = self._chance.choice(self.acknowledged[:-5])
        for which in range(len(self._servers.urls)):
            until = time.monotonic() + 20
            while True:
                path = f"/v1/search?user_id={self.user}&q={text.split()[0]}"
                found = await self._servers.send_to(which, "GET", path)
                if found is None or text.split()[0] in repr(found["data"]):
                    break
                if time.monotonic() > until:
                    self._servers.problems.append(f"server {which} does not find {text[:60]!r}")
                    break
                await asyncio.sleep(0.5)

    async def _preview(self) -> None:
        if self.acknowledged:
            path = f"/v1/sessions/{self.session}/context?user_id={self.user}"
            await self._send("POST", path, json={"budget": 2000})

    async def _pin(self) -> None:
        """Pin a message on one server; all servers show it."""
        if not self.acknowledged:
            return
        path = f"/v1/sessions/{self.session}/messages/0?user_id={self.user}"
        pinned = self._chance.random() < 0.5
        if await self._send("PATCH", path, json={"pinned": pinned}) is None:
            return
        for which in range(len(self._servers.urls)):
            page = await self._servers.send_to(
                which, "GET", f"/v1/sessions/{self.session}/messages?user_id={self.user}&limit=1"
            )
            if page and bool(page["data"][0].get("pinned")) != pinned:
                self._servers.problems.append(f"server {which} does not show that a message was pinned")

    async def _fork(self) -> None:
        """Fork the session on one server, continue the fork on another, and delete it."""
        if not self.acknowledged:
            return
        name = f"{self.session}-fork-{next(self._said)}"
        query = f"?user_id={self.user}"
        if await self._send("POST", f"/v1/sessions/{self.session}/fork{query}", json={"id": name}) is None:
            return
        text = f"{self._marker}f {name} goes on"
        body = self._body(text) | {"session_id": name}
        await self._send("POST", "/v1/chat/completions", json=body)
        page = await self._send("GET", f"/v1/sessions/{name}/messages{query}&limit=2&order=desc")
        if page and page["data"][1].get("content") != text:
            self._servers.problems.append(f"{name}: {page['data']!r:.300}")
        if self._chance.random() < 0.7:
            await self._send("DELETE", f"/v1/sessions/{name}{query}")
            await self._send("GET", f"/v1/sessions/{name}{query}", expect=(404,))

    async def _close(self) -> None:
        """End the session; the next message opens it again."""
        if self.acknowledged:
            await self._send("POST", f"/v1/sessions/{self.session}/close?user_id={self.user}", json={})

    async def _replace_session(self) -> None:
        """Delete a session on one server, and make one with the same name on another."""
        name, texts = f"{self.session}-other", []
        await self._send("DELETE", f"/v1/sessions/{name}?user_id={self.user}", expect=(200, 404))
        for _ in range(2):
            texts.append(f"{self._marker}r{next(self._said)}")
            await self._send("POST", "/v1/chat/completions", json=self._body(texts[-1]) | {"session_id": name})
        for which in range(len(self._servers.urls)):
            page = await self._servers.send_to(which, "GET", f"/v1/sessions/{name}/messages?user_id={self.user}")
            shown = [one.get("content") for one in page["data"] if one["role"] == "user"] if page else None
            if shown != texts:
                self._servers.problems.append(f"{name}: server {which} shows {shown}, not {texts}")

    async def _match(self) -> None:
        """Send the whole history without a session id: the same session continues."""
        text = self._say()
        if len(self.history) > 40:  # start a new conversation
            self._check_matched()
            self.history, self.sessions = [], set()
        self.history.append({"role": "user", "content": text})
        body = {"user": self.user, "messages": self.history}
        reply = await self._send("POST", "/v1/chat/completions", json=body)
        if reply is None:
            self.history.pop()
            return
        self.history.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        self.sessions.add(reply["session_id"])
        self._check_matched()

    def _check_matched(self) -> None:
        if len(self.sessions) > 1:
            self._servers.problems.append(f"{self.user}: one conversation became the sessions {self.sessions}")
