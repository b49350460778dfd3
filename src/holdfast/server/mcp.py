"""The MCP server over HTTP (streamable HTTP): `POST /mcp`.

No request depends on an earlier one, so any server process can answer it. Keys, users, limits and hosts work as for all other routes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import anyio
import msgspec
from msgspec import UNSET
from starlette.requests import ClientDisconnect
from starlette.types import Message

from holdfast.background import run_in_thread
from holdfast.domain.objects import Answer, Id, Request, json_schema
from holdfast.errors import MissingExtra, TooLarge
from holdfast.mcp_server.caller import EXTRA, McpCaller
from holdfast.server.http import Call
from holdfast.server.limits import MCP_REQUEST_BYTES
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.requester import identify_requester
from holdfast.server.routes import JSON, Routes
from holdfast.server.schema import Schema

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

routes = Routes("mcp")
PATH: Final = "/mcp"
_SERVER_ERROR: Final = -32_000
"""JSON-RPC's code for errors that a server defines."""
_OBJECT: Final[Schema] = {"type": "object", "additionalProperties": True}
_MESSAGE: Final[Schema] = {"schema": _OBJECT}
"""A JSON-RPC message. The Model Context Protocol describes the fields."""


class McpQuery(Request, kw_only=True):
    """Query parameters of the MCP server."""

    user_id: Id | None = None
    """User whose sessions and memories the tools reach; default: the key's user, else a user header, else `default`."""


class McpErrorDetails(Answer, kw_only=True):
    """An error in the format of JSON-RPC."""

    code: int
    """Code of JSON-RPC or the Model Context Protocol; -32000 for errors of this server."""
    message: str
    data: Annotated[Any, json_schema(anyOf=[_OBJECT, {"type": "string"}, {"type": "null"}])] = UNSET
    """For errors of this server: `code` and `param`, as in errors of the other routes."""


class McpError(Answer, kw_only=True):
    """An answer to a message that failed."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: int | str | None = None
    """Id of the message; null if the message was not read."""
    error: McpErrorDetails


@routes.add(
    "POST",
    PATH,
    "read",
    body={JSON: _MESSAGE},
    answer={JSON: _MESSAGE},
    errors=(McpError,),
    error_statuses=(404, 501),
    others={202: "A notification was received."},
)
async def answer_mcp(call: Call, query: McpQuery) -> Reply:
    """Answer a message of the Model Context Protocol (streamable HTTP, without sessions).

    A key with the role `read` can use the tools that read; `remember`, `forget` and `append_note` need the role `write`. Needs the extra
    `mcp`.
    """
    await run_in_thread(_load_protocol, long="holdfast.mcp_server.protocol" not in sys.modules)
    from holdfast.mcp_server.protocol import McpService

    state = call.request.app.state
    named = {} if query.user_id is None else {"user_id": query.user_id}
    requester = identify_requester(call, named, state.gateway)
    caller = McpCaller(hf=call.hf, user_id=requester.owner, can_write=call.principal.has_role("write"))
    message = await call.read_body()
    if call.body_size > MCP_REQUEST_BYTES:
        raise TooLarge(f"the body has {call.body_size} bytes; requests to {PATH} have at most {MCP_REQUEST_BYTES}")
    return await _exchange(McpService(caller, state.mcp_calls).make_server(), call, msgspec.json.encode(message))


def _load_protocol() -> None:
    """Import the MCP SDK, which takes tenths of a second. Raise `Refused` if it is not installed."""
    try:
        import holdfast.mcp_server.protocol  # noqa: F401
    except ImportError as exc:
        raise Refused(501, MissingExtra.code, str(MissingExtra("/mcp", EXTRA))) from exc


def to_rpc_error(reply: Reply) -> Reply:
    """Convert an error response from OpenAI's format to that of JSON-RPC. Return other responses unchanged."""
    body = reply.body
    if reply.status < 400 or not isinstance(body, Mapping) or "error" not in body:
        return reply
    given = body["error"]
    details = McpErrorDetails(
        code=_SERVER_ERROR, message=given["message"], data={"code": given["code"], "param": given["param"]}
    )
    return msgspec.structs.replace(reply, body=McpError(error=details))


async def _exchange(server: Server[Any], call: Call, body: bytes) -> Reply:
    """Pass one message to the SDK's server and return its response. End the work if the client disconnects.

    The SDK's transport lives for one request, so its tasks belong to this request, its principal and its cancellation.
    """
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    manager = StreamableHTTPSessionManager(
        server, stateless=True, json_response=True, max_request_body_size=MCP_REQUEST_BYTES
    )
    response = _Response(body)
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await call.request.receive())["type"] != "http.disconnect":
                pass
            response.is_wanted = False
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        async with manager.run():
            await manager.handle_request(response.make_scope(call), response.receive, response.send)
        tasks.cancel_scope.cancel()
    if not response.is_wanted and not response.status:
        raise ClientDisconnect
    return Reply(response.body or None, response.status, response.headers)


class _Response:
    """Passes a request's body to the SDK's transport, and collects the response."""

    def __init__(self, body: bytes) -> None:
        self.body = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_wanted = True
        """False after the client has disconnected."""
        self._request: list[bytes] = [body]

    def make_scope(self, call: Call) -> dict[str, Any]:
        """Return the scope of the request, with headers that describe the body that is passed on.

        The SDK requires two media types in `Accept`. Other clients may leave them out, because all responses are JSON.
        """
        own = {
            b"accept": b"application/json, text/event-stream",
            b"content-type": b"application/json",
            b"content-length": str(len(self._request[0])).encode(),
        }
        kept = [one for one in call.request.scope["headers"] if one[0] not in own]
        return {**call.request.scope, "headers": [*kept, *own.items()]}

    async def receive(self) -> Message:
        """Return the body at the first call. At the next call, wait until the exchange ends."""
        if self._request:
            return {"type": "http.request", "body": self._request.pop(), "more_body": False}
        await anyio.sleep_forever()
        raise AssertionError

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            found = {name.decode("latin-1"): value.decode("latin-1") for name, value in message.get("headers", ())}
            self.headers = {name: value for name, value in found.items() if name in ("content-type", "allow")}
        else:
            self.body += message.get("body", b"")
