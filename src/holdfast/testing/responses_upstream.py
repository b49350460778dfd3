"""Run a scripted server with OpenAI's Responses API.

    async with ResponsesUpstream(["Hello.", Reply(tool_calls=[("find", {"order": 7})])]) as upstream:
        model = ResponsesModel(upstream.url, "any-key")
        …

The replies are those of `holdfast.testing.upstream`. If a request includes `reasoning.encrypted_content` and a reply has `reasoning_content`,
the reasoning item has the encrypted text, which the next request must send back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from holdfast.models.codecs.chat import ChatDecoder
from holdfast.models.codecs.responses.encoder import ResponseEvents, ResponseHead
from holdfast.models.codecs.responses.ids import Place
from holdfast.models.codecs.responses.requests import decode_request
from holdfast.models.collect import to_chunks
from holdfast.testing.upstream import Received, Reply, ScriptedUpstream, make_completion
from holdfast.wire.openai import to_chat_message

_SEAL: Final = "sealed:"


class ResponsesUpstream(ScriptedUpstream):
    """A server that answers `POST /v1/responses` from a script, as a stream or as one Response object.

    It works like `ScriptedUpstream`. A request that OpenAI would refuse gets the status 400: an output without its call, encrypted
    reasoning or a compaction item that this server did not make (`encrypted_content` begins with `sealed:`), a field of a message or a type
    of a part that the API does not have.
    """

    PATH: ClassVar[str] = "/responses"

    def find_refusal(self, received: Received) -> Reply | None:
        known: set[Any] = set()
        given = received.body.get("input")
        for item in given if isinstance(given, list) else ():
            kind = item.get("type")
            if kind in ("reasoning", "compaction") and not str(item.get("encrypted_content")).startswith(_SEAL):
                message = "The encrypted content could not be verified."
                error = {"message": message, "type": "invalid_request_error", "code": "invalid_encrypted_content"}
                return Reply(status=400, error={"error": error})
            if kind == "message" and (refusal := _find_unknown(item)):
                return Reply(status=400, error=refusal)
            if kind in ("function_call", "custom_tool_call"):
                known.add(item["call_id"])
            elif kind in ("function_call_output", "custom_tool_call_output") and item["call_id"] not in known:
                return Reply(
                    status=400, error=f"No tool call found for function call output with call_id {item['call_id']}."
                )
        return None

    def to_chat(self, body: dict[str, Any]) -> Mapping[str, Any]:
        parsed = decode_request(body)
        return {**parsed.fields, "messages": [to_chat_message(message) for message in parsed.messages]}

    def format_reply(self, reply: Reply, body: dict[str, Any], number: int) -> bytes:
        response = self._list_events(reply, body, number)[-1]["response"]
        return json.dumps(response).encode()

    def format_events(self, reply: Reply, body: dict[str, Any], number: int) -> list[bytes]:
        events = self._list_events(reply, body, number) if reply.chunks is None else reply.chunks
        pieces = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
        if reply.error is None:
            return pieces
        failure = {"type": "error", "code": "server_error", "message": str(reply.error), "param": None}
        return [*pieces[: reply.cut_after], f"event: error\ndata: {json.dumps(failure)}\n\n".encode()]

    def _list_events(self, reply: Reply, body: dict[str, Any], number: int) -> list[dict[str, Any]]:
        parsed = decode_request(body)
        head = ResponseHead(Place(f"scripted-{number}", 0, "0"), 0, parsed.echo, parsed.tools.names)
        converter, decoder = ResponseEvents(lambda: head, lambda: 0), ChatDecoder()
        events = [
            event
            for chunk in to_chunks(make_completion(reply, body, number), by_word=True)
            for event in converter.add(decoder.decode(chunk))
        ]
        events += converter.end({})
        return (
            [_seal(event) for event in events]
            if "reasoning.encrypted_content" in (body.get("include") or ())
            else events
        )


def _find_unknown(item: Mapping[str, Any]) -> str | None:
    """Return the refusal of a message with a field or part that is not in the API reference, "Create a model response"."""
    unknown = item.keys() - {"type", "role", "content", "id", "status", "phase"}
    types = ("output_text", "refusal") if item["role"] == "assistant" else ("input_text", "input_image", "input_file")
    parts = item["content"] if isinstance(item["content"], list) else ()
    unknown |= {part["type"] for part in parts if part["type"] not in types}
    return f"Unknown parameter or value: {min(unknown)}." if unknown else None


def _seal(value: Any) -> Any:
    """Return an event in which each complete reasoning item has its encrypted content."""
    if isinstance(value, list):
        return [_seal(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: _seal(item) for name, item in value.items()}
    if value.get("type") == "reasoning" and value.get("content"):
        made["encrypted_content"] = _SEAL + value["content"][0]["text"]
    return made
