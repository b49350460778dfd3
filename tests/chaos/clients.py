"""Clients with markers of their own: each says one thing after the other, to whichever server answers, until it is heard."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence

import httpx2

MARKER = re.compile(r"\(m\d+\)")
"""What a client writes into everything it says."""
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
"""Answers after which a request is sent again as it is."""


class Crossed(AssertionError):
    """Somebody was shown what another one had said."""


class Client:
    """One client, in a session of its own or one that it shares with the others of its group.

    Args:
        number: which client; its marker.
        group: the numbers of all clients of its session.
        chance: decides what it does next.
        key: API key.
    """

    def __init__(self, number: int, group: Sequence[int], chance: random.Random, key: str = "") -> None:
        self.marker = f"(m{number})"
        self.session = f"chaos-{min(group)}"
        self.markers = frozenset(f"(m{member})" for member in group)
        self.acknowledged: list[tuple[str, bool]] = []
        """What it said and was heard, in order, and whether it asked for a reply."""
        self.tries = 0
        self.refused: list[str] = []
        self._said = 0
        self._chance = chance
        self._key = key

    async def talk(self, servers: Callable[[], Sequence[str]], ends: asyncio.Event) -> None:
        """Say one thing after the other until it `ends`; what is under way then is heard out."""
        headers = {"authorization": f"Bearer {self._key}"}
        async with httpx2.AsyncClient(trust_env=False, timeout=60, headers=headers) as http:
            while not ends.is_set():
                await self._say(http, servers)

    async def _say(self, http: httpx2.AsyncClient, servers: Callable[[], Sequence[str]]) -> None:
        text, kind = f"{self.marker} {self._said}", self._chance.choice(("chat", "stream", "append"))
        self._said += 1
        while True:
            self.tries += 1
            try:
                heard = await self._send(http, self._chance.choice(servers()), text, kind)
            except (httpx2.TransportError, httpx2.StreamError):
                heard = False
            if heard:
                self.acknowledged.append((text, kind != "append"))
                return
            await asyncio.sleep(self._chance.uniform(0.02, 0.2))

    async def _send(self, http: httpx2.AsyncClient, server: str, text: str, kind: str) -> bool:
        """Whether the server acknowledged it; what it shows is looked through."""
        messages = [{"role": "user", "content": text}]
        # The key of the servers names no user, so an idempotency key counts only from 16 characters on.
        headers = {"idempotency-key": f"request {text:>16}"}
        if kind == "append":
            url = f"{server}/v1/sessions/{self.session}/messages"
            response = await http.post(url, json={"messages": messages}, headers=headers)
        else:
            body = {"messages": messages, "session_id": self.session, "stream": kind == "stream"}
            response = await http.post(f"{server}/v1/chat/completions", json=body, headers=headers)
        self._look(response.text)
        if response.status_code in AGAIN:
            return False
        if response.status_code != 200:
            self.refused.append(f"{response.status_code} {response.text[:300]}")
            return False
        return _whole(response.text) if kind == "stream" else True

    def _look(self, shown: str) -> None:
        foreign = set(MARKER.findall(shown)) - self.markers
        if foreign:
            raise Crossed(f"{self.marker} was shown {foreign}")


def _whole(stream: str) -> bool:
    """Whether a stream came to its end without an error in it."""
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return bool(events) and events[-1] == "[DONE]" and not any("error" in json.loads(event) for event in events[:-1])
