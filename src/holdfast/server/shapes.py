"""JSON Schema in few words: what the API's objects are described with."""

from __future__ import annotations

from typing import Any, Final

from holdfast import limits

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, **more: Any) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": items, **more}


def text(about: str = "", **more: Any) -> Schema:
    """A string."""
    return {"type": "string", **({"description": about} if about else {}), **more}


def whole(about: str = "", low: int | None = 0, **more: Any) -> Schema:
    """A whole number."""
    least = {} if low is None else {"minimum": low}
    return {"type": "integer", **least, **({"description": about} if about else {}), **more}


def boolean(about: str = "") -> Schema:
    """True or false."""
    return {"type": "boolean", **({"description": about} if about else {})}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def free(about: str) -> Schema:
    """An object of any fields."""
    return {"type": "object", "additionalProperties": True, "description": about}


def record(about: str, fields: dict[str, Schema], *, optional: tuple[str, ...] = (), more: bool = False) -> Schema:
    """An object of these fields; all but the `optional` ones are there, and others only if `more` says so."""
    required = [name for name in fields if name not in optional]
    return {
        "type": "object",
        "description": about,
        "properties": fields,
        **({"required": required} if required else {}),
        "additionalProperties": more,
    }


def asked(about: str, fields: dict[str, Schema], *required: str, more: bool = False) -> Schema:
    """An object that is sent: nothing is required but what is named."""
    return record(about, fields, optional=tuple(name for name in fields if name not in required), more=more)


def page(items: str, ends: Schema, **more: Schema) -> Schema:
    """A list in OpenAI's shape."""
    fields: dict[str, Schema] = {
        "object": {"const": "list"},
        "data": array(ref(items)),
        "has_more": boolean("there are items behind the last one"),
        "first_id": ends,
        "last_id": {**ends, "description": "give it as `after` for the next page"},
    }
    return record("A page.", {**fields, **more})


def query(name: str, schema: Schema, about: str, *, required: bool = False) -> Schema:
    """A parameter of the query."""
    return {"name": name, "in": "query", "required": required, "description": about, "schema": schema}


def header(name: str, about: str) -> Schema:
    """A header of the request."""
    return {"name": name, "in": "header", "required": False, "description": about, "schema": text()}


ID: Final = text("1 to 512 bytes of any Unicode", minLength=1)
TIME: Final = whole("milliseconds since the epoch")
SYSTEM: Final[Schema] = {
    "description": f"the system prompt: messages, texts, or one text; at most {limits.SYSTEM_BYTES} bytes",
    "anyOf": [text(), array({"anyOf": [text(), ref("Message")]}), {"type": "null"}],
}
TOOLS: Final = array(free("a tool's schema, as the model takes it"))
SESSION_ASKED: Final[dict[str, Schema]] = {
    "session_id": nullable(
        text("also as header X-Session-Id; without one the messages tell which session they continue")
    ),
    "user_id": nullable(text("whose session it is, as `user` says in OpenAI's form; they must not differ")),
    "session_user": nullable(
        text(
            "with a session_id: whose session it is, where that is another user's in which the key's user takes part",
            minLength=1,
        )
    ),
    "session_mode": {
        "type": ["string", "null"],
        "enum": ["auto", "transcript", "delta", None],
        "description": "how the messages relate to the log",
    },
    "on_disconnect": {
        "type": ["string", "null"],
        "enum": ["cut", "finish", None],
        "description": "what becomes of the reply when the client goes before its end; unset: `gateway.on_disconnect`",
    },
    "session_queue": {
        "type": ["string", "null"],
        "enum": ["queue", "reject", "interrupt", None],
        "description": "while another turn of the session runs: wait, be refused with 409, or end that one",
    },
    "strategy": nullable(
        text("how this request's working set is made; one of `gateway.allowed_strategies`, or the agent's own")
    ),
    "budget": nullable(
        whole("most tokens of the conversation in this request's prompt; only less than the agent's or key's", 1)
    ),
    "recall": {
        "enum": ["auto", "on", "off", True, False, None],
        "description": "whether this request's prompt recalls what its session no longer shows",
    },
    "interrupt": nullable(
        free("of the last reply, what was heard: `content`, `chars`, or `ms` and `total_ms`; `timestamp`, `turn_id`")
    ),
    "session_match": {
        "type": ["string", "null"],
        "enum": ["on", "off", None],
        "description": "off: without a session_id a session is made, whatever was said before",
    },
}
"""What a request for a reply may ask of sessions, at every door."""
