"""The reference of the REST API: a page of every operation and one of every object, from the OpenAPI document of the app."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast import Holdfast
from holdfast.server.app import ROUTES, make_app
from scripts.site.markdown import code, table, words

Schema = Mapping[str, Any]
PAGE: Final = "reference/rest.md"
OBJECTS: Final = "reference/rest-objects.md"
_MAY: Final = {
    "public": "anybody: no key is asked for",
    "read": "a key of the role `read`, or more",
    "write": "a key of the role `write`, or more",
    "admin": "a key of the role `admin`",
    "server": "a key of the role `admin`, of the server's own tenant and of no user",
    "tenant": "a key of the role `write` that is of no user, or one of the role `admin`",
    "shared": "a key of the role `read`, or more, that is of no user",
    "shared write": "a key of the role `write`, or more, that is of no user",
}
_SEE: Final = (
    "[The gateway and the REST API](../gateway.md) says what they are for, [who may what](../access.md) how keys are made, and"
    " [limits](../limits.md) what is too much."
)
_RANGES: Final = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} long",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "format": "{}",
}


_NEEDS: Final = {(route.method, route.path): route.need for route in ROUTES}


def document() -> dict[str, Any]:
    """What `GET /openapi.json` answers, asked of an app without a server."""
    return asyncio.run(_asked("/openapi.json"))


async def _asked(path: str) -> dict[str, Any]:
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8377),
    }
    async with Holdfast("sqlite://:memory:") as hf:
        await make_app(hf, close=False)(scope, receive, send)
    told: dict[str, Any] = json.loads(b"".join(sent))
    return told


def pages() -> dict[str, str]:
    """Both pages, by their place."""
    of = document()
    return {PAGE: "\n".join(_operations(of)), OBJECTS: "\n".join(_objects(of))}


# -- operations ----------------------------------------------------------------


def _operations(of: Schema) -> Iterator[str]:
    yield from (
        "# REST API",
        "",
        "Every route of the server, as its own `GET /openapi.json` and `GET /docs` describe it.",
        "",
    )
    yield _SEE
    yield from ("", words(of["info"]["description"]), "")
    yield from ("## Keys", "", "A key comes in one of these ways; a server without keys asks for none.", "")
    yield from table(("way", "where"), [(code(name), _way(one)) for name, one in _schemes(of).items()])
    for tag in of["tags"]:
        yield from (f"## {tag['name'].capitalize()}", "", words(tag["description"]), "")
        mine = [
            (method, path, one)
            for path, item in of["paths"].items()
            for method, one in item.items()
            if tag["name"] in one["tags"]
        ]
        rows = [
            (f"[{code(f'{method.upper()} {path}')}](#{one['operationId']})", words(one["summary"]))
            for method, path, one in mine
        ]
        yield from table(("route", ""), rows)
        for method, path, one in mine:
            yield from _operation(method.upper(), path, one)


def _schemes(of: Schema) -> dict[str, Schema]:
    found: dict[str, Schema] = of["components"]["securitySchemes"]
    return found


def _way(scheme: Schema) -> str:
    where = f"header {code(scheme['name'])}. " if "name" in scheme else "header `Authorization: Bearer …`. "
    return where + words(scheme.get("description", "The same."))


def _operation(method: str, path: str, one: Schema) -> Iterator[str]:
    yield from (f"({one['operationId']})=", "", f"### {code(f'{method} {path}')}", "", words(one["summary"]), "")
    if "description" in one:
        yield from (words(one["description"]), "")
    yield from (f"**Who may:** {_MAY[_NEEDS[method, path]]}.", "")
    rows = [
        (code(given["name"]), _place(given), _kind(given["schema"]), words(given["description"]))
        for given in one["parameters"]
    ]
    yield from (("**Parameters**", "", *table(("name", "in", "type", ""), rows)) if rows else ())
    if "requestBody" in one:
        yield from (f"**Body:** {_content(one['requestBody']['content'])}", "")
    answers = {status: answer for status, answer in one["responses"].items() if status[0] in "123"}
    told = [(code(status), _about(answer), _content(answer.get("content", {}))) for status, answer in answers.items()]
    yield from ("**Answers**", "", *table(("status", "", "content"), told))
    failures = {status: answer for status, answer in one["responses"].items() if status not in answers}
    (shape,) = {_content(answer["content"]) for answer in failures.values()}
    yield from (f"**Errors**, as {shape}", "")
    yield from table(
        ("status", ""), [(code(status), words(answer["description"])) for status, answer in failures.items()]
    )


def _place(parameter: Schema) -> str:
    return f"{parameter['in']}, required" if parameter.get("required") else str(parameter["in"])


def _about(answer: Schema) -> str:
    headers = [f"header {code(name)}: {words(one['description'])}" for name, one in answer.get("headers", {}).items()]
    return " ".join([words(answer["description"]), *(f"{one}." for one in headers)])


def _content(content: Schema) -> str:
    return "; ".join(f"{code(kind)}: {_kind(item['schema'])}" for kind, item in content.items())


# -- objects -------------------------------------------------------------------


def anchor(name: str) -> str:
    """Where an object is described, on the page of objects."""
    return "object-" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _objects(of: Schema) -> Iterator[str]:
    yield from ("# Objects of the REST API", "", "What bodies and answers of the [REST API](rest.md) consist of.", "")
    for name, schema in sorted(of["components"]["schemas"].items()):
        yield from (f"({anchor(name)})=", "", f"## {code(name)}", "")
        if "description" in schema:
            yield from (words(schema["description"]), "")
        for one in schema.get("anyOf", (schema,)):
            yield from _fields(one)


def _fields(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    rows = [
        (code(name), "required" if name in required else "", _kind(field), words(field.get("description", "")))
        for name, field in schema.get("properties", {}).items()
    ]
    if not rows:
        yield from (f"{_kind(schema).capitalize()}.", "")
    yield from table(("field", "", "type", ""), rows)
    if rows and schema.get("additionalProperties", True) is not False:
        yield from ("Other fields may be there, and are kept.", "")


def _kind(schema: Schema) -> str:
    """What a value is, in a few words of Markdown."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{code(name)}](#{anchor(name)})"
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return " or ".join(_kind(one) for one in schema[either])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    return _plain(schema)


def _plain(schema: Schema) -> str:
    kinds = schema.get("type", "anything")
    told = " or ".join([kinds] if isinstance(kinds, str) else kinds)
    if "items" in schema:
        told += f" of {_kind(schema['items'])}"
    if "properties" in schema:
        told += " with " + ", ".join(f"{code(name)}: {_kind(field)}" for name, field in schema["properties"].items())
    elif isinstance(schema.get("additionalProperties"), Mapping) and schema["additionalProperties"]:
        told += f" of any names, each {_kind(schema['additionalProperties'])}"
    limits = [form.format(schema[name]) for name, form in _RANGES.items() if name in schema]
    return " ".join([told, *limits])
