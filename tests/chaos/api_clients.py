"""Clients of the other APIs: responses, conversations, forks, records and memory files.

Each client repeats a request, at any server, until it is acknowledged. After the run, it reads back what was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx2

from tests.chaos.clients import AGAIN, MARKER, Crossed

FILE: Final = "file"
"""After the marker: the model is to save a memory file."""
MOST_FORKS: Final = 20
LONGEST: Final = 40
"""Requests after which a chain of responses or a conversation begins again."""
COUNTER: Final = "/v1/records/record?scope=tenant&namespace=chaos&key=counter"
"""Record that all record clients change."""


class ApiClient(ABC):
    """One client, with data of its own.

    Args:
        number: number of the client, for its marker.
        chance: decides what it does next.
        key: API key.
        prompts: user messages of the prompt of each model call, by the last of them.
    """

    def __init__(self, number: int, chance: random.Random, key: str, prompts: Mapping[str, Sequence[str]]) -> None:
        self.marker = f"(m{number})"
        self.markers = frozenset({self.marker})
        self.name = f"api-{number}"
        self.tries = 0
        self.acknowledged = 0
        self.refused: list[str] = []
        self._key = key
        self._chance = chance
        self._prompts = prompts
        self._said = 0

    async def talk(self, servers: Callable[[], Sequence[str]], ends: asyncio.Event) -> None:
        """Send one request after the other until `ends` is set."""
        async with self._open() as self._http:
            self._servers = servers
            while not ends.is_set() and not self.refused:
                await self.say()
                self.acknowledged += 1

    async def verify(self, url: str) -> None:
        """Check what was acknowledged, at one server.

        Raises:
            AssertionError: something was lost, doubled or crossed.
        """
        async with self._open() as self._http:
            self._servers = lambda: [url]
            await self.check()

    def _open(self) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {self._key}"}
        return httpx2.AsyncClient(trust_env=False, timeout=60, headers=headers)

    @abstractmethod
    async def say(self) -> None:
        """Do one thing, until it is acknowledged."""

    @abstractmethod
    async def check(self) -> None:
        """Read back what was acknowledged."""

    def new_text(self, kind: str = "") -> str:
        """Return a text that no other request has."""
        self._said += 1
        return " ".join(filter(None, (self.marker, kind, str(self._said))))

    async def send(
        self,
        method: str,
        path: str,
        *,
        accept: tuple[int, ...] = (),
        is_whole: Callable[[httpx2.Response], bool] = lambda _: True,
        **more: Any,
    ) -> tuple[httpx2.Response, bool]:
        """Repeat a request until it is answered; return the answer, and whether an earlier attempt may have had an effect.

        Args:
            method: HTTP method.
            path: path and query.
            accept: statuses that the caller handles itself, in addition to those of success.
            is_whole: returns False if the answer ended early, so that the request is repeated.
            more: arguments of the HTTP client.
        """
        repeated = False
        while True:
            self.tries += 1
            try:
                response = await self._http.request(method, f"{self._chance.choice(self._servers())}{path}", **more)
            except (httpx2.TransportError, httpx2.StreamError):
                response = None
            if response is not None:
                foreign = set(MARKER.findall(response.text)) - self.markers
                if foreign and path != COUNTER:
                    raise Crossed(f"{self.marker} received {foreign}")
                if response.status_code in accept or (response.is_success and is_whole(response)):
                    return response, repeated
                if not response.is_success and response.status_code not in AGAIN:
                    self.refused.append(f"{method} {path}: {response.status_code} {response.text[:300]}")
                    return response, repeated
            repeated = True
            await asyncio.sleep(self._chance.uniform(0.02, 0.2))


def is_completed(response: httpx2.Response) -> bool:
    """Return True if a response of the Responses API is complete, streamed or not."""
    return bool(read_response(response)["status"] == "completed")


def read_response(response: httpx2.Response) -> dict[str, Any]:
    """Return the response object of an answer; if a stream ended early, an object without an id."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return dict(response.json())
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    last = events[-1] if events else {}
    return dict(last["response"]) if last.get("type") == "response.completed" else {"status": "incomplete"}


def read_output(response: Mapping[str, Any]) -> str:
    """Return the text of a response object."""
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


class ResponseClient(ApiClient):
    """Continues responses by `previous_response_id`, and sometimes an earlier one, which makes a fork."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._paths: dict[str, list[str]] = {}
        """Texts from the beginning of the conversation up to each response."""

    async def say(self) -> None:
        """Send one request."""
        text, known = self.new_text(), list(self._paths)
        previous = None
        if known and self._said % LONGEST:
            previous = self._chance.choice(known[-5:]) if self._chance.random() < 0.2 else known[-1]
        body = {"input": text, "previous_response_id": previous, "stream": self._chance.random() < 0.5}
        answer, _ = await self.send(
            "POST",
            "/v1/responses",
            json=body,
            headers={"idempotency-key": f"request {text:>16}"},
            is_whole=is_completed,
        )
        if answer.is_success:
            response = read_response(answer)
            assert read_output(response) == f"heard: {text}", f"{self.marker}: {text!r} got {read_output(response)!r}"
            self._paths[response["id"]] = [*self._paths.get(previous or "", ()), text]

    async def check(self) -> None:
        """Each response is there with its own input, and no prompt had a message of another branch."""
        for id_, path in self._paths.items():
            answer, _ = await self.send("GET", f"/v1/responses/{id_}")
            assert answer.is_success, f"lost: {id_}, {answer.text}"
            response = answer.json()
            assert (response["status"], read_output(response)) == ("completed", f"heard: {path[-1]}"), id_
            items = (await self.send("GET", f"/v1/responses/{id_}/input_items"))[0].json()["data"]
            assert [part["text"] for item in items for part in item["content"]] == [path[-1]], id_
            prompt = self._prompts[path[-1]]
            assert list(prompt) == path[-len(prompt) :], f"prompt of another branch: {prompt}, not {path}"


class ConversationClient(ApiClient):
    """Adds items and responses to conversations."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._conversations: dict[str, list[tuple[str, bool]]] = {}
        """Acknowledged texts of each conversation, and whether each has a reply."""
        self._current = ""

    async def say(self) -> None:
        """Create a conversation, add an item, or send a request."""
        if self._said % LONGEST == 0:
            answer, _ = await self.send("POST", "/v1/conversations", json={})
            self._current = answer.json()["id"]
            self._conversations[self._current] = []
        text, is_request = self.new_text(), self._chance.random() < 0.6
        headers = {"idempotency-key": f"request {text:>16}"}
        if is_request:
            body = {"input": text, "conversation": self._current, "stream": self._chance.random() < 0.5}
            answer, _ = await self.send("POST", "/v1/responses", json=body, headers=headers, is_whole=is_completed)
        else:
            item = {"type": "message", "role": "user", "content": text}
            path = f"/v1/conversations/{self._current}/items"
            answer, _ = await self.send("POST", path, json={"items": [item]}, headers=headers)
        if answer.is_success:
            self._conversations[self._current].append((text, is_request))

    async def check(self) -> None:
        """Each conversation has exactly the acknowledged texts, in order, and their replies."""
        for id_, known in self._conversations.items():
            items: list[dict[str, Any]] = []
            after = ""
            while True:
                query = f"?order=asc&limit=30{after}"
                page = (await self.send("GET", f"/v1/conversations/{id_}/items{query}"))[0].json()
                items += page["data"]
                if not page["has_more"]:
                    break
                after = f"&after={page['last_id']}"
            texts = [(item["role"], part["text"]) for item in items for part in item["content"]]
            own = [text for role, text in texts if role == "user"]
            assert own == [text for text, _ in known], f"{id_}: {describe_difference(own, [text for text, _ in known])}"
            replies = {text for role, text in texts if role == "assistant"}
            lost = [text for text, is_request in known if is_request and f"heard: {text}" not in replies]
            assert not lost, f"{id_}: lost replies to {lost[:5]}"


class ForkClient(ApiClient):
    """Appends to sessions and forks them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._sessions: dict[str, list[str]] = {}
        """Acknowledged texts of each session, those before a fork included."""

    async def say(self) -> None:
        """Fork a session, or append to one."""
        if not self._sessions:
            await self.send("POST", "/v1/sessions", json={"id": self.name}, accept=(409,))
            self._sessions[self.name] = []
        source = self._chance.choice(list(self._sessions))
        if self._chance.random() < 0.15 and len(self._sessions) < MOST_FORKS:
            await self._fork(source)
            return
        text = self.new_text()
        body = {"messages": [{"role": "user", "content": text}]}
        path = f"/v1/sessions/{source}/messages"
        answer, _ = await self.send("POST", path, json=body, headers={"idempotency-key": f"request {text:>16}"})
        if answer.is_success:
            self._sessions[source].append(text)

    async def _fork(self, source: str) -> None:
        name, path = f"{self.name}.{len(self._sessions)}", f"/v1/sessions/{source}/fork"
        while True:
            answer, repeated = await self.send("POST", path, json={"id": name}, accept=(409,))
            if answer.is_success:
                break
            if answer.status_code == 409 and answer.json()["error"]["code"] == "session_exists":
                assert repeated, f"{name} was there before it was created"
                break
            if answer.status_code != 409:
                return
            await asyncio.sleep(0.1)
        self._sessions[name] = list(self._sessions[source])

    async def check(self) -> None:
        """Each session has exactly its own messages, and those from before the fork."""
        for name, known in self._sessions.items():
            texts: list[str] = []
            after = ""
            while True:
                page = (await self.send("GET", f"/v1/sessions/{name}/messages?limit=50{after}"))[0].json()
                texts += [one["content"] for one in page["data"] if one["role"] == "user"]
                if not page["has_more"]:
                    break
                after = f"&after={page['last_id']}"
            assert texts == known, f"{name}: {describe_difference(texts, known)}"


class RecordClient(ApiClient):
    """Counts its changes in a record that all clients of this class share, by compare-and-set, and in one of its own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._count = 0

    async def say(self) -> None:
        """Add 1 to the own count in the shared record, then copy it to the own record."""
        self._count += 1
        while not self.refused:
            counts, version = await self._read()
            assert counts.get(self.marker, 0) in (self._count - 1, self._count), f"{self.marker}: {counts}"
            if counts.get(self.marker, 0) == self._count:
                break
            match = {"if-match": version} if version else {"if-none-match": "*"}
            body = {"value": {**counts, self.marker: self._count}}
            answer, _ = await self.send("PUT", COUNTER, json=body, headers=match, accept=(412,))
            if answer.is_success:
                break
        path = f"/v1/records?user_id={self.name}"
        change = {"op": "put", "namespace": ["n", str(self._count % 3)], "key": "k", "value": self._count}
        await self.send("POST", path, json={"changes": [change, {**change, "key": "same"}]})

    async def _read(self) -> tuple[dict[str, int], str]:
        answer, _ = await self.send("GET", COUNTER, accept=(404,))
        if answer.status_code == 404:
            return {}, ""
        return answer.json()["value"], answer.headers["etag"]

    async def check(self) -> None:
        """No change of the shared record was lost, and both own records have the last value."""
        counts, _ = await self._read()
        assert counts.get(self.marker, 0) == self._count, f"{self.marker}: counted {self._count}, found {counts}"
        for at in range(max(self._count - 2, 1), self._count + 1):
            for key in ("k", "same"):
                query = f"namespace=n/{at % 3}&key={key}"
                found, _ = await self.send("GET", f"/v1/records/record?user_id={self.name}&{query}", accept=(404,))
                assert found.is_success, f"lost: record {key} of {at}"
                assert found.json()["value"] == at, f"record {key} of {at}: {found.text}"


class MemoryFileClient(ApiClient):
    """Lets the model save memory files in a chat."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._texts: list[str] = []

    async def say(self) -> None:
        """Ask for one file."""
        text = self.new_text(FILE)
        body = {"messages": [{"role": "user", "content": text}], "session_id": self.name, "user": self.name}
        headers = {"idempotency-key": f"request {text:>16}", "x-memory": "server"}
        answer, _ = await self.send("POST", "/v1/chat/completions", json=body, headers=headers)
        if answer.is_success:
            reply = answer.json()["choices"][0]["message"]["content"]
            assert reply == f"heard: {text}", f"{text!r} got {reply!r}"
            self._texts.append(text)

    async def check(self) -> None:
        """Each file that the model saved in an acknowledged turn is there."""
        for text in self._texts:
            query = f"path={make_file_path(text)}"
            answer, _ = await self.send("GET", f"/v1/users/{self.name}/memory_files?{query}", accept=(404,))
            versions = [one["text"] for one in answer.json()["data"]] if answer.is_success else []
            assert versions[:1] == [text], f"lost: the file of {text}: {answer.text}"


def make_file_path(text: str) -> str:
    """Return the path of the memory file that the model saves when it is sent `text`."""
    return f"/memories/{text.rpartition(' ')[2]}.md"


def is_file_saved(message: Mapping[str, Any]) -> bool:
    """Return True if a message is a tool result that reports that the file is there."""
    text = str(message.get("content"))
    return message["role"] == "tool" and ("created" in text or "already exists" in text)


def describe_difference(found: Sequence[str], known: Sequence[str]) -> str:
    """Return what is lost, doubled or added in `found`."""
    lost, added = Counter(known) - Counter(found), Counter(found) - Counter(known)
    if lost or added:
        return f"lost {list(lost)[:5]}, doubled or added {list(added)[:5]}"
    return "out of order"


KINDS: Final[tuple[type[ApiClient], ...]] = (
    ResponseClient,
    ConversationClient,
    ForkClient,
    RecordClient,
    MemoryFileClient,
)
"""Each run has at least one client of each kind, and two record clients."""
