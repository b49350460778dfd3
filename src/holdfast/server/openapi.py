"""Generate the OpenAPI 3.1 document from the routes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast._version import __version__
from holdfast.docstrings import list_field_docs
from holdfast.domain.artifact import ArtifactName
from holdfast.domain.objects import Count, Id, NonEmpty, Request, json_schema
from holdfast.server.chat_objects import Error
from holdfast.server.context import ContextRequest, describe_strategy
from holdfast.server.permissions import ROLES, Need
from holdfast.server.routes import JSON, Route
from holdfast.server.schema import Schema, make_components, make_parameters_schema, make_ref

_ABOUT: Final = {
    400: "The request is not valid: its body or one of its parameters.",
    401: "The API key is missing or not valid. Unknown, expired and revoked keys get the same answer.",
    403: "The host or origin is not allowed, or the key's role does not permit the request.",
    404: "The object does not exist.",
    408: "The body did not arrive in time.",
    409: "The object already exists, or several users have a session with this id: name one with `user_id`."
    " A turn of the session is running (`session_busy`). For a compaction: there is nothing to compact, or one is in progress.",
    412: "The version differs from `If-Match` or `If-None-Match`, or a state key has another value than expected.",
    413: "A limit was exceeded; the message names the limit.",
    415: "The body is compressed or not JSON. For an artifact: its type is not allowed, or does not match the content.",
    416: "The range is outside the content; `Content-Range` has the size.",
    422: "The `Idempotency-Key` was used with another body; the metadata of a voice record are not valid (`invalid_metadata`); the"
    " text in `interrupt` is not a beginning of the reply (`heard_mismatch`); or the request contains a secret and the server"
    " rejects secrets (`secret_blocked`).",
    429: "The key's rate limit is exceeded, or the model's provider asks to wait; `Retry-After` has the seconds.",
    500: "The server failed, or stored data is damaged (`store_corrupt`).",
    501: "The route needs an extra that is not installed; the message names it.",
    502: "The model could not be reached or sent an invalid reply.",
    503: "The store cannot be written: the disk is full, the file is locked or read-only, or the database is not reachable. Nothing was "
    "stored, unless the message says that the outcome is unknown: then retry with the same `Idempotency-Key`.",
    504: "The model did not answer in time.",
}
_REFUSED: Final = "The model's provider rejected the request; status and message are the provider's."
_EVERY: Final = (403, 500)
_ADMITTED: Final = (401, 429)
"""Error statuses of every route that requires a key."""
_TAGS: Final = {
    "chat": "OpenAI's Chat Completions and Anthropic's Messages, with memory.",
    "sessions": "Create, list, fork, move and delete sessions.",
    "messages": "Messages of a session, and the prompt built from them.",
    "voice": "For voice agents: records of spoken turns, interruptions, and speech from outside.",
    "state": "Key-value state of a session, a user or the app.",
    "responses": "Stored responses of OpenAI's Responses API.",
    "conversations": "Sessions as OpenAI's conversations.",
    "records": "Key-value records of a session, a user or the tenant, with versions.",
    "compactions": "Summaries that replace older messages in prompts. The log keeps all messages.",
    "facts": "Standing facts: what the user said that stays valid.",
    "artifacts": "Named, versioned files of a session, or of all sessions of a user.",
    "search": "Search past conversations.",
    "memories": "Facts kept across sessions.",
    "mcp": "Tools and resources for clients of the Model Context Protocol.",
    "workspaces": "Files of agents with their history, each in a git repository.",
    "keys": "API keys: create, list and revoke them.",
    "short form": "Sessions with shorter routes.",
    "server": "Health, metrics, and this description.",
}
_GENERAL: Final = (
    "Bodies are JSON objects in UTF-8. Ids in paths are percent-encoded. Every response has the header X-Request-Id; a valid"
    " id sent by the client is kept. Duplicate keys in objects, repeated parameters or headers, and compressed bodies are"
    " rejected. HEAD answers like GET without the body. A method that a route does not support gets 405 with the supported"
    " methods in Allow; a request line with headers over the limit gets 431."
)


_SECURITY: Final[Schema] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key from `holdfast keys create`, or a token of the configured issuer. If the server passes the client's"
        " key on to the model, put that key here and the API key into X-Holdfast-Key.",
    },
    "holdfastKey": {"type": "apiKey", "in": "header", "name": "X-Holdfast-Key"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe_api(routes: Sequence[Route], *, requires_key: bool = True) -> Schema:
    """Return the OpenAPI document of the routes.

    Args:
        routes: all routes.
        requires_key: True if requests need a key. False: the document shows that a key is optional.
    """
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _describe_operation(route, requires_key=requires_key)
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
        "components": {"schemas": _add_strategies(_make_components(tuple(routes))), "securitySchemes": _SECURITY},
    }


@cache
def _make_components(routes: tuple[Route, ...]) -> dict[str, Schema]:
    return make_components([kind for route in routes for kind in _list_structs(route)])


def _add_strategies(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas, updated with strategies that the application has registered since the schemas were made."""
    request = schemas[ContextRequest.__name__]
    properties = {**request["properties"], "strategy": describe_strategy()}
    return {**schemas, ContextRequest.__name__: {**request, "properties": properties}}


def _list_structs(route: Route) -> Iterator[type]:
    for given in (route.body, route.answer, route.errors or Error):
        several = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple) else (given,)
        yield from (kind for kind in several if isinstance(kind, type))


def _describe_operation(route: Route, *, requires_key: bool) -> Schema:
    summary, _, description = route.summary.partition("\n")
    operation: Schema = {
        "summary": summary,
        **({"description": " ".join(description.split())} if description else {}),
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', route.path.lower()).strip('_') or 'home'}",
        "tags": [route.tag],
        "parameters": [*_describe_path(route.path), *_describe_query(route), *route.request_headers],
        "responses": _describe_responses(route),
        **_describe_security(route.need, requires_key=requires_key),
    }
    if route.body is not None:
        operation["requestBody"] = {"required": isinstance(route.body, type), "content": _describe_content(route.body)}
    return operation


def _describe_content(given: Any) -> Schema:
    """Return the OpenAPI `content` of a body or response: its schema by media type."""
    if not isinstance(given, Mapping):
        given = {JSON: given}
    return {kind: one if isinstance(one, Mapping) else {"schema": _make_either(one)} for kind, one in given.items()}


def _make_either(kinds: Any) -> Schema:
    """Return the schema of a struct, or for a tuple of structs a schema that allows any of them."""
    return {"anyOf": [make_ref(kind) for kind in kinds]} if isinstance(kinds, tuple) else make_ref(kinds)


def _describe_security(need: Need, *, requires_key: bool) -> Schema:
    """Return the kinds of keys that an operation accepts, and the role that it requires."""
    if need == "public":
        return {"security": []}
    role = ROLES[need]
    return {"security": [*({name: []} for name in _SECURITY), *([] if requires_key else [{}])], "x-holdfast-role": role}


def _describe_responses(route: Route) -> Schema:
    good = {
        "description": "Success.",
        "content": _describe_content(route.answer),
        **({"headers": route.response_headers} if route.response_headers else {}),
    }
    failures = sorted({*route.list_error_statuses(), *_EVERY, *(_ADMITTED if route.need != "public" else ())})
    shape = route.errors if len(route.errors) > 1 else (*route.errors, Error)[0]
    error = _describe_content(shape)
    responses = {str(status): {"description": _ABOUT[status], "content": error} for status in failures}
    if route.handler is None:
        responses["4XX"] = {"description": _REFUSED, "content": error}
    others = {
        str(status): {**good, "description": about} if status in (200, 206) else {"description": about}
        for status, about in route.others.items()
    }
    return {str(route.status): good, **others, **responses}


def _describe_query(route: Route) -> list[Schema]:
    if route.query is None:
        return []
    required = {field.name for field in msgspec.structs.fields(route.query) if field.required}
    names = route.query.__struct_fields__
    return [_describe_parameter(route.query, name, "query", required=name in required) for name in names]


class PathParameters(Request, kw_only=True):
    """The parameters that the paths of routes can contain."""

    seq: Count
    """Number of the message in the log."""
    session_id: Id
    """Id of the session."""
    compaction_id: Annotated[int, json_schema(minimum=1)]
    """Id of the compaction."""
    change_id: Annotated[int, json_schema(minimum=1)]
    """Id of the held change of a memory file."""
    call_id: NonEmpty
    """Id of the model call, like `12.0`; `12` for the last call of turn 12; `next` for the prompt that would be built now."""
    block: Literal["facts", "summary", "digest"]
    """Kind of the block."""
    fact_id: str
    """Id of the fact, like `4.1`."""
    key_id: str
    """Id of the API key: the part of the key between `hf_` and the secret."""
    name: ArtifactName
    """Name of the artifact."""
    user_id: Id
    """Id of the user."""
    memory_id: str
    """Id of the memory."""
    agent: Id
    """Name of the agent; `default` for sessions without an agent."""
    response_id: str
    """Id of the response."""
    conversation_id: str
    """Id of the conversation: `conv_` and the id of its session, encoded."""
    item_id: str
    """Id of the item."""


def _describe_path(path: str) -> list[Schema]:
    names = re.findall(r"{(\w+)}", path)
    return [_describe_parameter(PathParameters, name, "path", required=True) for name in names]


def _describe_parameter(kind: type[msgspec.Struct], name: str, place: str, *, required: bool) -> Schema:
    schema = dict(make_parameters_schema(kind)[name])
    about = schema.pop("description", "")
    about = list_field_docs(kind).get(name, about)
    return {"name": name, "in": place, "required": required, "description": about, "schema": schema}
