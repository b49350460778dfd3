"""Each route refuses what its description forbids: the tables are made from `/openapi.json`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx2

from tests.behaviour.kit import Served, gateway, user
from tests.behaviour.kit.objects import ITEM, fill
from tests.behaviour.kit.wrong_values import Schema, WrongValues, list_wrong_texts

HI: Final = user("hi")
EXAMPLES: Final[dict[str, Any]] = {
    "messages": [HI],
    "message": HI,
    "input": "hi",
    "text": "hm",
    "content": "kelp",
    "value": 1,
    "at_turn": 0,
    "decision": "accept",
    "id": "other",
    "pinned": True,
    "items": [ITEM],
    "metadata": {},
    "changes": [{"op": "increment", "key": "n"}],
}
"""A value for each field that a body needs, whatever its route."""
NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "NewMessages": ("messages",),
    "NewTurn": ("messages",),
    "SessionImport": ("messages",),
    "ChatRequest": ("messages",),
    "MessagesRequest": ("messages",),
    "CountRequest": ("messages",),
    "CreateResponse": ("input",),
    "CompactRequest": ("input",),
    "InputTokensRequest": ("input",),
    "FactChange": ("pinned",),
    "MoveRequest": ("id",),
}
"""Fields that a body needs although each of them alone may be absent."""
ANY_QUERY: Final = {
    "/healthz",
    "/readyz",
    "/",
    "/metrics",
    "/openapi.json",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
}
"""Routes that take any query, because probes and clients of providers send their own."""
UNREAD: Final = {
    **dict.fromkeys(("prompt_cache_options", "prompt_cache_retention", "service_tier"), "CompactRequest"),
    "interrupt": "InputTokensRequest",
    **dict.fromkeys(("id", "user_id", "records", "images", "videos", "contents"), "SessionImport"),
}
"""Fields that a route describes and does not read: those of a provider, and those that only a complete export has."""
NULLABLE: Final = {"messages", "message"}
"""Objects in which null is the same as nothing, as providers have it."""
OWNED: Final = ("/v1/state", "/v1/records")
"""Paths that need an owner in the query."""


@dataclass
class Operation:
    """A method of a path."""

    method: str
    path: str
    described: Schema

    @property
    def parameters(self) -> list[Schema]:
        return list(self.described.get("parameters", ()))

    @property
    def query(self) -> list[Schema]:
        return [one for one in self.parameters if one["in"] == "query"]

    @property
    def required_query(self) -> list[str]:
        return [one["name"] for one in self.query if one.get("required")]

    @property
    def body_name(self) -> str:
        content = self.described.get("requestBody", {}).get("content", {}).get("application/json", {})
        return str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Walk:
    """Sends wrong requests to all routes of a server in which there is something to spoil."""

    def __init__(self, served: Served, document: Schema, names: Mapping[str, str]) -> None:
        self.http, self.document, self.names = served.http, document, names
        self.operations = [
            Operation(method.upper(), path, described)
            for path, item in document["paths"].items()
            for method, described in item.items()
        ]
        self.wrong: list[str] = []
        self.sent = 0

    def schema_of(self, operation: Operation) -> Schema:
        found: Schema = self.document["components"]["schemas"].get(operation.body_name, {})
        return found

    def body_of(self, operation: Operation) -> dict[str, Any]:
        """Return a body that the route accepts."""
        needed = [*self.schema_of(operation).get("required", ()), *NEEDED.get(operation.body_name, ())]
        return {name: EXAMPLES[name] for name in needed}

    def find_part(self, schema: Schema) -> Schema:
        """Return the schema of the objects in a field; an empty one if there are none of one kind."""
        inner = schema.get("items", schema)
        found: Schema = self.document["components"]["schemas"].get(str(inner.get("$ref", "")).rpartition("/")[2], {})
        return found

    async def send(
        self,
        operation: Operation,
        *,
        query: Any = (),
        place: Iterable[tuple[str, str]] = (),
        without: str = "",
        headers: Sequence[tuple[str, str]] = (),
        **content: Any,
    ) -> httpx2.Response:
        path = operation.path
        for name, value in {**self.names, **dict(place)}.items():
            path = path.replace("{" + name + "}", quote(value, safe=""))
        needed = {one: EXAMPLES_OF_QUERY[one] for one in operation.required_query}
        if operation.path.startswith(OWNED) and "session_id" not in dict(query):
            needed["user_id"] = "default"
        given = [*((name, value) for name, value in needed.items() if name not in {*dict(query), without}), *query]
        self.sent += 1
        return await self.http.request(operation.method, path, params=given, headers=dict(headers), **content)

    async def refuse(
        self, operation: Operation, param: str | None, what: object, *, words: Iterable[object] = (), **request: Any
    ) -> None:
        """Send a request that must be refused, and note what is wrong with its answer."""
        answer = await self.send(operation, **request)
        complaint = find_complaint(answer, param, words)
        if f"unknown field '{param}'" in answer.text and param != "no_such_field":
            complaint = "a field that is described is unknown"
        if not {str(answer.status_code), "4XX"} & operation.described["responses"].keys():
            complaint = "a status that is not described"
        if complaint:
            self.wrong.append(f"{operation} {what!r:.80}: {complaint}: {answer.text[:300]}")


KINDS: Final = {"query": "query", "header": "headers", "path": "place"}
SHAPES: Final = {
    "": {"message", "type", "param", "code"},
    "/v1/messages": {"message", "type", "param", "details"},
    "/mcp": {"message", "param", "code"},
}
"""Fields of an error: OpenAI's, Anthropic's, and those of JSON-RPC."""
ALIASES: Final = {"id": ("id", "session_id")}
EXAMPLES_OF_QUERY: Final = {"q": "kelp", "namespace": "a", "key": "k"}


def find_complaint(answer: httpx2.Response, param: str | None, words: Iterable[object] = ()) -> str | None:
    """Return what is wrong with a refusal: its status, its shape, its parameter, its words; None if it is right."""
    if not 400 <= answer.status_code < 500 or answer.status_code == 404:
        return f"status {answer.status_code}"
    error, path = answer.json().get("error", {}), answer.request.url.path
    error |= error.pop("data", {}) if path == "/mcp" else {}
    fields = SHAPES.get("/v1/messages" if path.startswith("/v1/messages") else path, SHAPES[""])
    message = error.get("message")
    if not message or set(error) != fields or not answer.headers["x-request-id"]:
        return "wrong shape"
    if param is not None and not str(error.get("param")).startswith(ALIASES.get(param, param)):
        return f"param {error.get('param')!r}, not {param!r}"
    if missing := [word for word in words if str(word) not in message]:
        return f"does not say {missing}"
    return None


def list_allowed(schema: Schema, value: object) -> list[Any]:
    """Return what an error must say: the values that are allowed in place of this one."""
    return [one for one in schema.get("enum", ()) if isinstance(one, str) and isinstance(value, str) and value]


@asynccontextmanager
async def walk() -> AsyncIterator[Walk]:
    """Serve sessions, memories, records and so on. At the end, nothing of them has changed, and all refusals were right."""
    async with gateway(lambda _: "ok", "auth: {required: false}") as served:
        names = await fill(served.http)
        document = (await served.http.get("/openapi.json")).json()
        walk = Walk(served, document, names)
        before = await photograph(served)
        yield walk
        assert walk.sent
        assert walk.wrong == []
        assert await photograph(served) == before


async def photograph(served: Served) -> dict[str, Any]:
    """Return all that is stored, as REST shows it."""
    paths = [
        "/v1/sessions?limit=100",
        "/v1/sessions/s?retired=true",
        "/v1/sessions/s/artifacts",
        "/v1/memories",
        "/v1/records?namespace=a",
        "/v1/state?user_id=default",
        "/v1/keys",
        "/v1/deletions",
    ]
    found = {}
    for path in paths:
        answer = await served.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        found[path] = answer.json()
    return found


async def test_fields_of_a_wrong_type_or_beyond_a_limit() -> None:
    async with walk() as each:
        wrong = WrongValues(each.document)
        for operation in each.operations:
            for name, schema in each.schema_of(operation).get("properties", {}).items():
                for value in wrong.list(schema):
                    if UNREAD.get(name) != operation.body_name:
                        await each.refuse(
                            operation,
                            name,
                            {name: value},
                            words=list_allowed(schema, value),
                            json=each.body_of(operation) | {name: value},
                        )


async def test_fields_that_are_unknown() -> None:
    async with walk() as each:
        for operation in each.operations:
            if each.schema_of(operation).get("additionalProperties") is False:
                body = {**each.body_of(operation), "no_such_field": 1}
                await each.refuse(operation, "no_such_field", body, json=body)


async def test_fields_that_are_missing() -> None:
    async with walk() as each:
        for operation in each.operations:
            for name in each.schema_of(operation).get("required", ()):
                body = {other: value for other, value in each.body_of(operation).items() if other != name}
                await each.refuse(operation, name, body, json=body)


NO_OBJECTS: Final[dict[str, bytes]] = {
    "nothing": b"",
    "blank": b" \n",
    "half": b'{"messages": [',
    "two": b"{}{}",
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
    "a number": b"7",
    "NaN": b'{"messages": NaN}',
    "infinity": b'{"messages": 1e999}',
    "no UTF-8": b'{"messages": "\xff\xfe"}',
    "UTF-16": '{"messages": []}'.encode("utf-16"),
    "a lone surrogate in an id": b'{"session_id": "\\ud800"}',
    "a lone surrogate in a key": b'{"\\udc00": 1}',
    "deep lists": b'{"messages": ' + b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a little too deep": b'{"metadata": ' + b"[" * 70 + b"]" * 70 + b"}",
    "a huge number": b'{"messages": ' + b"9" * 30 + b"}",
    "a number too long to read": b'{"messages": ' + b"9" * 5000 + b"}",
}


async def test_bodies_that_are_no_json_object() -> None:
    async with walk() as each:
        for operation in each.operations:
            if operation.body_name:
                for what, content in NO_OBJECTS.items():
                    await each.refuse(operation, None, what, content=content)
                await each.refuse(operation, None, "gzip", content=b"{}", headers=[("content-encoding", "gzip")])


async def test_parameters_of_a_wrong_type_or_beyond_a_limit() -> None:
    async with walk() as each:
        for operation in each.operations:
            for parameter in operation.parameters:
                name, body = parameter["name"], each.body_of(operation) if operation.body_name else None
                for text in list_wrong_texts(parameter["schema"]):
                    if parameter["in"] == "header" and not (text.isascii() and text.isprintable()):
                        continue  # clients cannot send it
                    given = {KINDS[parameter["in"]]: [(name, text)]}
                    if parameter["in"] != "path" or text not in {"", "0"}:  # these name nothing: 404
                        words = list_allowed(parameter["schema"], text)
                        await each.refuse(operation, name, text, words=words, json=body, **given)


async def test_parameters_that_are_unknown_or_there_twice() -> None:
    async with walk() as each:
        for operation in each.operations:
            if operation.path not in ANY_QUERY:
                body = each.body_of(operation) if operation.body_name else None
                await each.refuse(operation, "no_such_field", "unknown", query=[("no_such_field", "1")], json=body)
                for one in operation.query:
                    twice = [(one["name"], "1")] * 2
                    await each.refuse(operation, one["name"], twice, query=twice, json=body)


async def test_parameters_that_are_missing() -> None:
    async with walk() as each:
        for operation in each.operations:
            for name in operation.required_query:
                body = each.body_of(operation) if operation.body_name else None
                await each.refuse(operation, name, name, without=name, json=body)


async def test_methods_that_a_path_does_not_have() -> None:
    async with walk() as each:
        for path, item in each.document["paths"].items():
            known = {method.upper() for method in item}
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - known:
                answer = await each.send(Operation(method, path, {}))
                each.sent += 1
                if answer.status_code != 405 or answer.headers["allow"] != ", ".join(sorted(known)):
                    each.wrong.append(f"{method} {path}: {answer.status_code} {answer.headers} {answer.text[:100]}")


async def test_fields_of_parts() -> None:
    """Of the objects in a list, and of those in a field."""
    async with walk() as each:
        wrong = WrongValues(each.document)
        for operation in each.operations:
            for name, schema in each.schema_of(operation).get("properties", {}).items():
                part = each.find_part(schema)
                example = EXAMPLES.get(name, [{}])
                for inner, inner_schema in part.get("properties", {}).items():
                    for value in wrong.list(inner_schema):
                        if (name, inner, value) == ("sources", "session_id", "") or (
                            value is None and name in NULLABLE
                        ):
                            continue
                        given = {**(example[0] if isinstance(example, list) else example), inner: value}
                        body = each.body_of(operation) | {name: [given] if "items" in schema else given}
                        await each.refuse(operation, name, {name: {inner: value}}, json=body)
