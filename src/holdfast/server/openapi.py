"""The API's description, OpenAPI 3.1: made from the table of routes, so that it cannot name one that is not there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast._version import __version__
from holdfast.server.artifact_schemas import NAME
from holdfast.server.operations import DOORS, JSON, OPERATIONS, Operation
from holdfast.server.permissions import PERMISSIONS, ROLES, Need
from holdfast.server.schemas import COMPONENTS
from holdfast.server.shapes import ID, Schema, ref, text, whole

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


def describe(table: Mapping[str, Mapping[str, Callable[..., Any]]], *, asks: bool = True) -> Schema:
    """The OpenAPI document of a table of routes and of the gateway.

    Args:
        table: the handlers, by path and method.
        asks: whether a key is asked for.
    """
    paths: dict[str, Schema] = {path: {"post": _operation("POST", path, None, asks=asks)} for _, path in DOORS}
    for path, handlers in table.items():
        paths[path] = {
            method.lower(): _operation(method, path, handler, asks=asks) for method, handler in handlers.items()
        }
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
        "components": {"schemas": COMPONENTS, "securitySchemes": _SECURITY},
    }


def _operation(method: str, path: str, handler: Callable[..., Any] | None, *, asks: bool) -> Schema:
    about = (inspect.getdoc(handler) if handler else None) or "Answer a conversation, with the session's memory in it."
    operation = OPERATIONS[method, path]
    summary, _, description = about.partition("\n")
    told: Schema = {
        "summary": summary,
        **({"description": " ".join(description.split())} if description else {}),
        "operationId": f"{method.lower()}_{re.sub(r'[^a-z0-9]+', '_', path.lower()).strip('_') or 'home'}",
        "tags": [operation.tag],
        "parameters": [*_path_parameters(path), *operation.parameters],
        "responses": _responses(operation, PERMISSIONS[method, path], chat=(method, path) in DOORS),
        **_asked(PERMISSIONS[method, path], asks=asks),
    }
    if operation.body is not None:
        body = operation.body
        content = {JSON: {"schema": ref(body)}} if isinstance(body, str) else body
        told["requestBody"] = {"required": isinstance(body, str), "content": content}
    return told


def _asked(need: Need, *, asks: bool) -> Schema:
    """Which keys an operation takes, and what they must be good for."""
    if need == "public":
        return {"security": []}
    role = ROLES[need]
    return {"security": [*({name: []} for name in _SECURITY), *([] if asks else [{}])], "x-holdfast-role": role}


def _responses(operation: Operation, need: Need, *, chat: bool) -> Schema:
    answer = operation.answer
    content = {JSON: {"schema": ref(answer)}} if isinstance(answer, str) else answer
    good = {"description": "Done.", "content": content, **({"headers": operation.headers} if operation.headers else {})}
    failures = sorted({*operation.failures, *_EVERY, *(_ADMITTED if need != "public" else ())})
    shapes = [ref(name) for name in operation.errors]
    error = {JSON: {"schema": shapes[0] if len(shapes) == 1 else {"anyOf": shapes}}}
    told = {str(status): {"description": _ABOUT[status], "content": error} for status in failures}
    if chat:
        told["4XX"] = {"description": _REFUSED, "content": error}
    others = {
        str(status): {**good, "description": about} if status in (200, 206) else {"description": about}
        for status, about in operation.others.items()
    }
    return {str(operation.status): good, **others, **told}


def _path_parameters(path: str) -> list[Schema]:
    known = {
        "seq": (whole(), "the message's place in the log"),
        "session_id": (ID, "the session's id"),
        "compaction_id": (whole(low=1), "the compaction's id"),
        "fact_id": (text(), "the fact's id, like `4.1`"),
        "name": (NAME, "the artifact's name"),
        "user_id": (ID, "whose"),
        "memory_id": (text(), "the memory's id"),
        "agent": (ID, "the agent's name; `default`: that of sessions without an agent"),
    }
    names = re.findall(r"{(\w+)}", path)
    return [
        {"name": name, "in": "path", "required": True, "description": known[name][1], "schema": known[name][0]}
        for name in names
    ]
