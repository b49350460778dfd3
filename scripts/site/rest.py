"""Generate the reference of the REST API from the app's OpenAPI document: a page of operations and a page of objects."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast import Holdfast
from holdfast.server.app import ROUTES, make_app
from scripts.site.markdown import escape_prose, format_code, format_table

Schema = Mapping[str, Any]
PAGE: Final = "reference/rest.md"
OBJECTS: Final = "reference/rest-objects.md"
_MAY: Final = {
    "public": "everyone, without a key",
    "read": "keys with the role `read` or higher",
    "write": "keys with the role `write` or higher",
    "admin": "keys with the role `admin`",
    "server": "keys with the role `admin` of the server's own tenant that belong to no user",
    "tenant": "keys with the role `write` that belong to no user, and keys with the role `admin`",
    "shared": "keys with the role `read` or higher that belong to no user",
    "shared write": "keys with the role `write` or higher that belong to no user",
    "shared admin": "keys with the role `admin` that belong to no user",
}
_SEE: Final = (
    "[The gateway and the REST API](../gateway.md) explains what the routes are for, [access](../access.md) how to create keys, and"
    " [limits](../limits.md) the sizes that are allowed."
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


def load_document() -> dict[str, Any]:
    """Return the answer of `GET /openapi.json` from an app without a server."""
    return asyncio.run(_request("/openapi.json"))


async def _request(path: str) -> dict[str, Any]:
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
    document: dict[str, Any] = json.loads(b"".join(sent))
    return document


def make_pages() -> dict[str, str]:
    """Return both pages by their paths."""
    of = load_document()
    return {PAGE: "\n".join(_format_operations(of)), OBJECTS: "\n".join(_format_objects(of))}


# -- operations ----------------------------------------------------------------


def _format_operations(of: Schema) -> Iterator[str]:
    yield from (
        "# REST API",
        "",
        "Every route of the server, as its own `GET /openapi.json` and `GET /docs` describe it.",
        "",
    )
    yield _SEE
    yield from ("", escape_prose(of["info"]["description"]), "")
    yield from ("## Keys", "", "Send a key in one of these ways. A server without keys needs none.", "")
    yield from format_table(
        ("way", "where"), [(format_code(name), _format_scheme(one)) for name, one in _get_schemes(of).items()]
    )
    for tag in of["tags"]:
        yield from (f"## {tag['name'].capitalize()}", "", escape_prose(tag["description"]), "")
        mine = [
            (method, path, one)
            for path, item in of["paths"].items()
            for method, one in item.items()
            if tag["name"] in one["tags"]
        ]
        rows = [
            (f"[{format_code(f'{method.upper()} {path}')}](#{one['operationId']})", escape_prose(one["summary"]))
            for method, path, one in mine
        ]
        yield from format_table(("route", ""), rows)
        for method, path, one in mine:
            yield from _format_operation(method.upper(), path, one)


def _get_schemes(of: Schema) -> dict[str, Schema]:
    found: dict[str, Schema] = of["components"]["securitySchemes"]
    return found


def _format_scheme(scheme: Schema) -> str:
    where = f"header {format_code(scheme['name'])}. " if "name" in scheme else "header `Authorization: Bearer …`. "
    return where + escape_prose(scheme.get("description", "The same."))


def _format_operation(method: str, path: str, one: Schema) -> Iterator[str]:
    yield from (
        f"({one['operationId']})=",
        "",
        f"### {format_code(f'{method} {path}')}",
        "",
        escape_prose(one["summary"]),
        "",
    )
    if "description" in one:
        yield from (escape_prose(one["description"]), "")
    yield from (f"**Allowed for:** {_MAY[_NEEDS[method, path]]}.", "")
    rows = [
        (
            format_code(given["name"]),
            _format_location(given),
            _format_type(given["schema"]),
            escape_prose(given["description"]),
        )
        for given in one["parameters"]
    ]
    yield from (("**Parameters**", "", *format_table(("name", "in", "type", ""), rows)) if rows else ())
    if "requestBody" in one:
        yield from (f"**Body:** {_format_content(one['requestBody']['content'])}", "")
    answers = {status: answer for status, answer in one["responses"].items() if status[0] in "123"}
    responses = [
        (format_code(status), _format_response(answer), _format_content(answer.get("content", {})))
        for status, answer in answers.items()
    ]
    yield from ("**Answers**", "", *format_table(("status", "", "content"), responses))
    failures = {status: answer for status, answer in one["responses"].items() if status not in answers}
    (shape,) = {_format_content(answer["content"]) for answer in failures.values()}
    yield from (f"**Errors**, as {shape}", "")
    yield from format_table(
        ("status", ""),
        [(format_code(status), escape_prose(answer["description"])) for status, answer in failures.items()],
    )


def _format_location(parameter: Schema) -> str:
    return f"{parameter['in']}, required" if parameter.get("required") else str(parameter["in"])


def _format_response(answer: Schema) -> str:
    headers = [
        f"header {format_code(name)}: {escape_prose(one['description'])}"
        for name, one in answer.get("headers", {}).items()
    ]
    return " ".join([escape_prose(answer["description"]), *(f"{one}." for one in headers)])


def _format_content(content: Schema) -> str:
    return "; ".join(f"{format_code(kind)}: {_format_type(item['schema'])}" for kind, item in content.items())


# -- objects -------------------------------------------------------------------


def make_anchor(name: str) -> str:
    """Return the anchor of an object on the page of objects."""
    return "object-" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _format_objects(of: Schema) -> Iterator[str]:
    yield from (
        "# Objects of the REST API",
        "",
        "The objects in requests and responses of the [REST API](rest.md).",
        "",
    )
    for name, schema in sorted(of["components"]["schemas"].items()):
        yield from (f"({make_anchor(name)})=", "", f"## {format_code(name)}", "")
        if "description" in schema:
            yield from (escape_prose(schema["description"]), "")
        for one in schema.get("anyOf", (schema,)):
            yield from _format_fields(one)


def _format_fields(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    rows = [
        (
            format_code(name),
            "required" if name in required else "",
            _format_type(field),
            escape_prose(field.get("description", "")),
        )
        for name, field in schema.get("properties", {}).items()
    ]
    if not rows:
        yield from (f"{_format_type(schema).capitalize()}.", "")
    yield from format_table(("field", "", "type", ""), rows)
    if rows and schema.get("additionalProperties", True) is not False:
        yield from ("Other fields are allowed and are kept.", "")


def _format_type(schema: Schema) -> str:
    """Describe the type of a value in a few words of Markdown."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{format_code(name)}](#{make_anchor(name)})"
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return " or ".join(_format_type(one) for one in schema[either])
    if "const" in schema:
        return format_code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(format_code(json.dumps(value)) for value in schema["enum"])
    return _format_plain_type(schema)


def _format_plain_type(schema: Schema) -> str:
    kinds = schema.get("type", "anything")
    text = " or ".join([kinds] if isinstance(kinds, str) else kinds)
    if "items" in schema:
        text += f" of {_format_type(schema['items'])}"
    if "properties" in schema:
        text += " with " + ", ".join(
            f"{format_code(name)}: {_format_type(field)}" for name, field in schema["properties"].items()
        )
    elif isinstance(schema.get("additionalProperties"), Mapping) and schema["additionalProperties"]:
        text += f" of any names, each {_format_type(schema['additionalProperties'])}"
    limits = [form.format(schema[name]) for name, form in _RANGES.items() if name in schema]
    return " ".join([text, *limits])
