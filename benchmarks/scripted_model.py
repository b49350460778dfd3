"""A model server that answers requests of memory systems at once: `python -m benchmarks.scripted_model` prints its port.

It fills the JSON schema of a request, or the JSON object that mem0 asks for, with the newest order number of the prompt. So every
turn yields one new fact, in words other than the user's. It also returns vectors made from hashes of words. `GET /counts` returns
how often it was called, and the tokens of all prompts (o200k).
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from holdfast.tokens import STORED

DIMENSIONS = 256
_ORDER = re.compile(r"W\d{6}")


class ScriptedModel:
    """Replies to requests, and keeps their texts until somebody reads the counts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.vectors = 0
        self.embedding_calls = 0

    async def complete(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/chat/completions`."""
        body = await request.json()
        text = "\n".join(_read_text(message.get("content")) for message in body["messages"])
        self.prompts.append(text)
        orders = _ORDER.findall(text)
        content = json.dumps(_fill(body.get("response_format") or {}, f"order {orders[-1] if orders else 'W000000'}"))
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        reply = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"]}
        return web.json_response({**reply, "choices": [choice], "usage": usage})

    async def embed(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/embeddings`."""
        body = await request.json()
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self.embedding_calls += 1
        self.vectors += len(texts)
        data = [{"object": "embedding", "index": at, "embedding": _hash_words(text)} for at, text in enumerate(texts)]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})

    async def count(self, _: web.Request) -> web.Response:
        """Answer `GET /counts`: the tokens of each prompt, and the numbers of embedding calls and vectors."""
        tokens = [STORED.text(prompt) for prompt in self.prompts]
        return web.json_response({"tokens": tokens, "embedding_calls": self.embedding_calls, "vectors": self.vectors})


def _read_text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def _hash_words(text: str) -> list[float]:
    vector = [0.0] * DIMENSIONS
    for word in text.lower().split():
        vector[zlib.crc32(word.encode()) % DIMENSIONS] += 1.0
    size = sum(value * value for value in vector) ** 0.5 or 1.0
    return [value / size for value in vector]


def _fill(response_format: Mapping[str, Any], subject: str) -> Any:
    """Return a value for a response format: mem0 gets one memory, a JSON schema is filled."""
    schema = response_format.get("json_schema", {}).get("schema")
    if schema is None:
        return {"memory": [{"id": "0", "text": f"Is interested in {subject}", "attributed_to": "user"}]}
    return _fill_schema(schema, schema.get("$defs", {}), "", subject)


def _fill_schema(schema: Mapping[str, Any], definitions: Mapping[str, Any], name: str, subject: str) -> Any:  # noqa: PLR0911 - one per type
    if "$ref" in schema:
        return _fill_schema(definitions[schema["$ref"].rpartition("/")[2]], definitions, name, subject)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return None if {"type": "null"} in options else _fill_schema(options[0], definitions, name, subject)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {key: _fill_schema(value, definitions, key, subject) for key, value in properties.items()}
        case "array":
            return [] if _is_index_list(schema, name) else [_fill_schema(schema["items"], definitions, name, subject)]
        case "integer" | "number":
            return -1 if "candidate" in name or "duplicate" in name else 0
        case "boolean":
            return False
        case _:
            return subject


def _is_index_list(schema: Mapping[str, Any], name: str) -> bool:
    """Return True for lists of indexes, such as the facts that a new fact contradicts: there are none."""
    return schema.get("items", {}).get("type") == "integer" and name != "episode_indices"


async def main() -> None:
    """Listen until the process is killed."""
    model = ScriptedModel()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", model.complete)
    app.router.add_post("/v1/embeddings", model.embed)
    app.router.add_get("/counts", model.count)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
