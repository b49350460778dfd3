"""The API's description, OpenAPI 3.1: made from the table of routes, so that it cannot name one that is not there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast._version import __version__
from holdfast.context.settings import STRATEGIES
from holdfast.stores.base import MAX_PAGE

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object", "additionalProperties": True}
_MESSAGES: Schema = {"type": "array", "items": {"$ref": "#/components/schemas/Message"}}
_TTL: Schema = {"type": ["integer", "null"], "minimum": 1, "description": "milliseconds of idleness"}

CHAT_BODY: Schema = {
    "type": "object",
    "additionalProperties": True,
    "required": ["messages"],
    "properties": {
        "model": {"type": "string", "description": "an agent, an llm, or a model's name"},
        "messages": {**_MESSAGES, "minItems": 1},
        "stream": {"type": "boolean"},
        "tools": {"type": "array", "items": _OBJECT},
        "user": _TEXT,
        "session_id": {"type": "string", "description": "also as header X-Session-Id; without one a session is made"},
        "session_mode": {"enum": ["auto", "transcript", "delta"]},
        "session_match": {"enum": ["on", "off"]},
        "agent": _TEXT,
    },
}
_SESSION_BODY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "id": _TEXT,
        "user_id": _TEXT,
        "agent": _TEXT,
        "system_messages": _MESSAGES,
        "state": _OBJECT,
        "metadata": _OBJECT,
        "ttl": _TTL,
    },
}
_BODIES: dict[tuple[str, str], Schema] = {
    ("POST", "/v1/chat/completions"): CHAT_BODY,
    ("POST", "/v1/sessions"): _SESSION_BODY,
    ("PUT", "/v1/sessions/{session_id}"): {
        "type": "object",
        "additionalProperties": True,
        "required": ["messages"],
        "properties": {**_SESSION_BODY["properties"], "messages": _MESSAGES},
    },
    ("PATCH", "/v1/sessions/{session_id}"): {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: _SESSION_BODY["properties"][name] for name in ("system_messages", "metadata", "ttl", "state", "agent")
        },
    },
    ("POST", "/v1/sessions/{session_id}/messages"): {
        "type": "object",
        "additionalProperties": False,
        "required": ["messages"],
        "properties": {"messages": {**_MESSAGES, "minItems": 1}},
    },
    ("PATCH", "/v1/sessions/{session_id}/messages/{seq}"): {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "pinned": {"type": "boolean"},
            "importance": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        },
    },
    ("POST", "/v1/sessions/{session_id}/context"): {
        "type": "object",
        "additionalProperties": True,
        "properties": {
            "strategy": {"enum": [name for name, strategy in STRATEGIES.items() if strategy.available]},
            "budget": {"type": "integer", "minimum": 1, "description": "tokens of the conversation"},
            "model": _TEXT,
            "dialect": {"enum": ["openai", "anthropic", "gemini"]},
            "at_turn": {"type": "integer", "minimum": 0},
            "explain": {"type": "boolean"},
            "tools": {"type": "array", "items": _OBJECT},
            "system_messages": _MESSAGES,
        },
    },
}
_PAGING: list[Schema] = [
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}},
    {"name": "after", "in": "query", "schema": _TEXT},
    {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}},
]
_QUERIES: dict[tuple[str, str], list[Schema]] = {
    ("GET", "/v1/sessions"): [
        *_PAGING,
        *({"name": name, "in": "query", "schema": _TEXT} for name in ("user_id", "agent", "status", "after_user")),
    ],
    ("GET", "/sessions"): [{"name": "user_id", "in": "query", "schema": _TEXT}],
    ("GET", "/v1/sessions/{session_id}/messages"): [
        *_PAGING,
        {"name": "retired", "in": "query", "schema": {"enum": ["true", "false"]}},
    ],
    ("GET", "/v1/sessions/{session_id}/history"): [
        {"name": "view", "in": "query", "schema": {"enum": ["voice", "plain"]}}
    ],
}
_COMPONENTS: Schema = {
    "Message": {
        "type": "object",
        "additionalProperties": True,
        "required": ["role"],
        "properties": {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}},
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
}


def describe(table: Mapping[str, Mapping[str, Callable[..., Any]]]) -> Schema:
    """The OpenAPI document of a table of routes and of the gateway."""
    paths: dict[str, Schema] = {"/v1/chat/completions": {"post": _operation("POST", "/v1/chat/completions", None)}}
    for path, handlers in table.items():
        paths[path] = {method.lower(): _operation(method, path, handler) for method, handler in handlers.items()}
    info = {"title": "Holdfast", "version": __version__, "summary": "Session memory for LLM agents."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": _COMPONENTS}}


def _operation(method: str, path: str, handler: Callable[..., Any] | None) -> Schema:
    about = inspect.getdoc(handler) if handler else "Answer a conversation, with the session's memory in it."
    error = {"description": "an error", "content": _json({"$ref": "#/components/schemas/Error"})}
    done = {"description": "done", "content": _json(_OBJECT)}
    operation: Schema = {
        "summary": (about or "").partition("\n")[0],
        "operationId": f"{method.lower()}_{re.sub(r'[^a-z0-9]+', '_', path.lower()).strip('_')}",
        "parameters": [*_path_parameters(path), *_QUERIES.get((method, path), [])],
        "responses": {"201" if (method, path) == ("POST", "/v1/sessions") else "200": done, "default": error},
    }
    body = _BODIES.get((method, path))
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _path_parameters(path: str) -> list[Schema]:
    found = []
    for name in re.findall(r"{(\w+)}", path):
        schema: Schema = {"type": "integer", "minimum": 0} if name == "seq" else _TEXT
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}
