"""The API's description, OpenAPI 3.1: made from the routes, so that it cannot name one that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final

import msgspec

from holdfast._version import __version__
from holdfast.server.chat_objects import Error
from holdfast.server.permissions import ROLES, Need
from holdfast.server.routes import JSON, Route
from holdfast.server.schema import Schema, components, docstrings, parameters_schema, ref
from holdfast.wire.artifacts import ArtifactName
from holdfast.wire.objects import Count, Id, Request, json_schema

_ABOUT: Final = {
    400: "The request cannot be right: what it says, or one of its parameters.",
    401: "There is no API key, or none that is valid: the same answer for one that is unknown, expired or revoked.",
    403: "The request names a host, or comes from a page, that this server does not answer; or the key's role does not suffice.",
    404: "There is nothing of that name.",
    408: "The body took too long to arrive.",
    409: "It exists already, or several users have a session of that id: name one with `user_id`; of a compaction: there is"
    " nothing to compact, or it is being made already.",
    412: "The session, the artifact, the memory or the state is at another version than `If-Match` or `If-None-Match` says; or something"
    " else stands under a key of the state than is expected.",
    413: "A limit was passed; the message names it and its number.",
    415: "The body is compressed, or not JSON by its own headers; of an artifact: its type is not taken, or not its content's.",
    416: "None of the range is there; `Content-Range` says how many bytes are.",
    422: "The `Idempotency-Key` was used before with another body; a message's metadata are no voice record's"
    " (`invalid_metadata`); what was heard is no beginning of the reply (`heard_mismatch`); or the server refuses secrets, and"
    " there is one (`secret_blocked`).",
    429: "There were too many requests with this key, or the model's provider asks to wait; `Retry-After` says how long.",
    500: "The server failed, or what is stored is damaged (`store_corrupt`).",
    502: "The model could not be reached, or did not answer as one.",
    503: "The store cannot be written: the disk is full, the file locked or read-only, the database away. Nothing was stored, "
    "unless the message says that the outcome is unknown: then try again with the same `Idempotency-Key`.",
    504: "The model took too long.",
}
_REFUSED: Final = "The model's provider refused the request; its status and words."
_EVERY: Final = (403, 500)
_ADMITTED: Final = (401, 429)
"""Of every route that asks for a key."""
_TAGS: Final = {
    "chat": "OpenAI's Chat Completions and Anthropic's Messages, with memory.",
    "sessions": "Sessions as a whole.",
    "messages": "What was said in a session, and what of it a model would see.",
    "voice": "What voice agents need: records of what was said and heard, interrupting, speaking from outside.",
    "state": "What is kept beside the log: of a session, of a user, of all.",
    "compactions": "Summaries that stand for the older part of a session; the log keeps all of it.",
    "facts": "Standing facts: what the user said that still holds.",
    "artifacts": "Named, versioned, typed contents of a session, or of all sessions of a user.",
    "search": "What was said in past conversations.",
    "memories": "What is remembered across sessions.",
    "workspaces": "What agents keep in files, and how that came to be: a git repository each.",
    "short form": "Sessions in fewer words.",
    "server": "Health, metrics, and this description.",
}
_GENERAL: Final = (
    "Bodies are JSON objects in UTF-8; ids in paths are percent-encoded. Every answer has the header X-Request-Id, a"
    " client's own if it sends a harmless one. A key that stands twice in an object, a parameter or header that is given"
    " twice, and a compressed body are refused. HEAD answers like GET, without the body. A method that a route does not have"
    " is a 405 that names the right ones in Allow; a request whose line and headers are too long is a 431."
)


_SECURITY: Final[Schema] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, as `holdfast keys create` shows it, or a token of the configured issuer. Where the server"
        " hands the client's key on to the model, that one; then the API key goes into X-Holdfast-Key.",
    },
    "holdfastKey": {"type": "apiKey", "in": "header", "name": "X-Holdfast-Key"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe(routes: Sequence[Route], *, asks: bool = True) -> Schema:
    """Return the OpenAPI document of the routes.

    Args:
        routes: all of them.
        asks: whether a key is asked for.
    """
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, asks=asks)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "summary": "Session memory for LLM agents.",
            "description": _GENERAL,
        },
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": _components(tuple(routes)), "securitySchemes": _SECURITY},
    }


@cache
def _components(routes: tuple[Route, ...]) -> dict[str, Schema]:
    """Return the schemas of all that the routes take and answer."""
    return components([kind for route in routes for kind in _kinds(route)])


def _kinds(route: Route) -> Iterator[type]:
    """Return the structs that a route names."""
    for given in (route.body, route.answer, route.errors or Error):
        several = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple) else (given,)
        yield from (kind for kind in several if isinstance(kind, type))


def _operation(route: Route, *, asks: bool) -> Schema:
    summary, _, description = route.summary.partition("\n")
    operation: Schema = {
        "summary": summary,
        **({"description": " ".join(description.split())} if description else {}),
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', route.path.lower()).strip('_') or 'home'}",
        "tags": [route.tag],
        "parameters": [*_path_parameters(route.path), *_query_parameters(route), *route.takes],
        "responses": _responses(route),
        **_security(route.need, asks=asks),
    }
    if route.body is not None:
        operation["requestBody"] = {"required": isinstance(route.body, type), "content": _content(route.body)}
    return operation


def _content(given: Any) -> Schema:
    """Return the content of a body or an answer by its media types."""
    if not isinstance(given, Mapping):
        given = {JSON: given}
    return {kind: one if isinstance(one, Mapping) else {"schema": _either(one)} for kind, one in given.items()}


def _either(kinds: Any) -> Schema:
    """Return the schema of a struct, or of one of several."""
    return {"anyOf": [ref(kind) for kind in kinds]} if isinstance(kinds, tuple) else ref(kinds)


def _security(need: Need, *, asks: bool) -> Schema:
    """Return which keys an operation takes, and what they must be good for."""
    if need == "public":
        return {"security": []}
    role = ROLES[need]
    return {"security": [*({name: []} for name in _SECURITY), *([] if asks else [{}])], "x-holdfast-role": role}


def _responses(route: Route) -> Schema:
    good = {
        "description": "Done.",
        "content": _content(route.answer),
        **({"headers": route.gives} if route.gives else {}),
    }
    failures = sorted({*route.fails, *_EVERY, *(_ADMITTED if route.need != "public" else ())})
    shape = route.errors if len(route.errors) > 1 else (*route.errors, Error)[0]
    error = _content(shape)
    responses = {str(status): {"description": _ABOUT[status], "content": error} for status in failures}
    if route.handler is None:
        responses["4XX"] = {"description": _REFUSED, "content": error}
    others = {
        str(status): {**good, "description": about} if status in (200, 206) else {"description": about}
        for status, about in route.others.items()
    }
    return {str(route.status): good, **others, **responses}


def _query_parameters(route: Route) -> list[Schema]:
    if route.query is None:
        return []
    required = {field.name for field in msgspec.structs.fields(route.query) if field.required}
    names = route.query.__struct_fields__
    return [_parameter(route.query, name, "query", required=name in required) for name in names]


class PathParameters(Request, kw_only=True):
    """What paths name."""

    seq: Count
    """The message's place in the log."""
    session_id: Id
    """The session's id."""
    compaction_id: Annotated[int, json_schema(minimum=1)]
    """The compaction's id."""
    fact_id: str
    """The fact's id, like `4.1`."""
    name: ArtifactName
    """The artifact's name."""
    user_id: Id
    """Whose."""
    memory_id: str
    """The memory's id."""
    agent: Id
    """The agent's name; `default`: that of sessions without an agent."""


def _path_parameters(path: str) -> list[Schema]:
    names = re.findall(r"{(\w+)}", path)
    return [_parameter(PathParameters, name, "path", required=True) for name in names]


def _parameter(kind: type[msgspec.Struct], name: str, place: str, *, required: bool) -> Schema:
    schema = dict(parameters_schema(kind)[name])
    about = schema.pop("description", "")
    about = docstrings(kind).get(name, about)
    return {"name": name, "in": place, "required": required, "description": about, "schema": schema}
