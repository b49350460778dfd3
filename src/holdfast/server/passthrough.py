"""Pass requests for routes that Holdfast does not serve through to an upstream, unrecorded, and list the models of the upstream.

A body of JSON is read first, because its `model` chooses the upstream. Other bodies, and all responses, are passed on in pieces.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
import msgspec
from starlette.requests import ClientDisconnect

from holdfast.accounting import run_cpu
from holdfast.agents import Llm, Roster
from holdfast.errors import ModelError
from holdfast.limits import INLINE_BODY_BYTES, MODEL_EVENT_BYTES
from holdfast.models.base import Model
from holdfast.models.client import ForwardedHead
from holdfast.server.artifacts import SAFETY_HEADERS
from holdfast.server.body_limits import get_declared_size
from holdfast.server.body_streams import read_chunks, read_first_chunk
from holdfast.server.http import Call
from holdfast.server.key_cache import trim_cache
from holdfast.server.limits import BODY_SECONDS
from holdfast.server.permissions import METHODS, REST, UPSTREAM_HEADS, Refused, permit
from holdfast.server.replies import Reply, make_error_body
from holdfast.server.routes import JSON, Route
from holdfast.wire.strict_json import decode_json

_log = logging.getLogger("holdfast.server")
# An upstream could read other characters and `..` as another path.
_PATH: Final = re.compile(r"/v1(/([a-z_]+)(?:/(?!\.+(?:/|$))(?:[\w.:~@=+,-]|%3[Aa])+)*)", re.ASCII)
_METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_BODY_METHODS: Final = ("PATCH", "POST", "PUT")
_REQUEST_HEADERS: Final = (
    *("accept", "accept-language", "anthropic-beta", "anthropic-version", "content-type", "openai-beta", "range"),
    "x-client-request-id",
)
"""Headers of requests that an upstream gets. All others may have keys, cookies, or what a proxy says of the user."""
_RESPONSE_HEADERS: Final = frozenset(
    {"accept-ranges", "content-disposition", "content-range", "content-type", "openai-model", "openai-processing-ms"}
    | {"openai-version", "retry-after", "retry-after-ms", "x-should-retry"}
)
"""Headers of responses that a client gets, in addition to those of the upstream's rate limits."""
_MODELS_SECONDS: Final = 3.0
"""Maximum seconds that a list of models waits for the upstream's list."""
_MODELS_FRESH_SECONDS: Final = 60.0
"""Seconds for which the upstream's list of models is cached."""


async def serve_other_path(call: Call) -> Reply:
    """Pass a request for a route of the upstream through. Answer any other with status 404."""
    request = call.request
    found = _PATH.fullmatch(request.scope["path"])
    is_passed = found and found[2] in UPSTREAM_HEADS and request.method in _METHODS
    if not found or not is_passed or not request.app.state.gateway.passthrough:
        message = f"no route {request.method} {request.url.path}; GET /openapi.json lists all routes"
        return Reply(make_error_body(message, kind="invalid_request_error", code="not_found"), 404)
    permit(request.scope, "write")
    headers = {name: value for name in _REQUEST_HEADERS if (value := call.get_header(name))}
    headers.update(call.handed)
    if UPSTREAM_HEADS[found[2]] and call.caller.upstream is None and not call.caller.own:
        message = "the provider stores these objects for the owner of the server's key: use a key of its tenant without a user"
        raise Refused(403, "forbidden", message)
    upload, llm = _Upload(), call.hf.roster.find_llm(None)
    body: bytes | AsyncIterator[bytes] | None = None
    if request.method in _BODY_METHODS and headers.get("content-type", "").partition(";")[0].strip().lower() == JSON:
        data = await call.read_json()
        llm, body = await run_cpu(_choose_llm, call.hf.roster, data, long=len(data) > INLINE_BODY_BYTES)
    elif request.method in _BODY_METHODS:
        if (size := get_declared_size(request.headers)) is not None:
            headers["content-length"] = str(size)
        body = await upload.begin(call)
    forward = _find_forward(llm.client)
    if forward is None:
        message = f"{request.method} {request.url.path} needs an upstream, and the model {llm.name!r} has none"
        return Reply(make_error_body(message, kind="invalid_request_error", code="no_upstream"), 404)
    path = f"{found[1]}?{request.url.query}".rstrip("?")
    answer = forward(request.method, path, headers, body)
    head = await upload.wait_for_head(call, answer)
    return Reply(answer, head.status, _select_headers(head))


NOT_FOUND_ROUTES: Final = tuple(
    Route(
        method=method, path=REST, need="read", tag="", summary="", answer=None, handler=serve_other_path, lenient=True
    )
    for method in METHODS
)
"""Routes for all paths that no other route has."""


def _find_forward(client: Model) -> Callable[..., AsyncGenerator[Any, None]] | None:
    """Return the function that forwards requests to a model's upstream, or None if the model has no upstream."""
    return getattr(client, "forward", None)


def _choose_llm(roster: Roster, data: bytes) -> tuple[Llm, bytes]:
    """Return the llm that a body names, and the body with the upstream's name of its model; else the default llm, and the body unchanged."""
    body = decode_json(data) if data else None
    if isinstance(body, dict) and isinstance(body.get("model"), str) and body["model"] in roster.llms:
        llm = roster.llms[body["model"]]
        return llm, msgspec.json.encode({**body, "model": llm.model})
    return roster.find_llm(None), data


def _select_headers(head: ForwardedHead) -> dict[str, str]:
    """Return the headers of an upstream's response that the client gets, and those that stop browsers from running its content."""
    theirs = {name.lower(): value for name, value in head.headers.items()}
    kept = {
        name: value
        for name, value in theirs.items()
        if name in _RESPONSE_HEADERS or name.startswith(("anthropic-ratelimit-", "x-ratelimit-"))
    }
    if "content-length" in theirs and "content-encoding" not in theirs and head.status < 400:
        kept["content-length"] = theirs["content-length"]
    return {**kept, **SAFETY_HEADERS}


class _Upload:
    """The body of a request while it is passed on, if it is passed on in pieces."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._ended.set()
        self._failure: Exception | None = None

    async def begin(self, call: Call) -> AsyncIterator[bytes]:
        """Return the pieces of a request's body. An error in the first one is raised at once."""
        chunks = await read_first_chunk(read_chunks(call.request, *call.most_body))
        self._ended.clear()
        return self._pass_chunks(chunks)

    async def _pass_chunks(self, chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except Exception as exc:
            self._failure = exc
            raise
        finally:
            self._ended.set()

    async def wait_for_head(self, call: Call, answer: AsyncGenerator[Any, None]) -> ForwardedHead:
        """Return status and headers of the answer.

        Raises:
            ClientDisconnect: the client went away before. The call of the upstream has been cancelled.
        """
        head: asyncio.Future[ForwardedHead] = asyncio.ensure_future(anext(answer))
        gone = asyncio.ensure_future(self._wait_for_disconnect(call))
        try:
            await asyncio.wait((head, gone), return_when=asyncio.FIRST_COMPLETED)
            if not head.done():
                raise ClientDisconnect
            if head.result().status < 400:  # else the rest of the body matters to no one
                with anyio.move_on_after(BODY_SECONDS):
                    await self._ended.wait()
            return head.result()
        except ModelError:
            if self._failure is not None:  # the client's body is the reason
                raise self._failure from None
            raise
        finally:
            gone.cancel()
            head.cancel()
            await asyncio.wait((gone, head))

    async def _wait_for_disconnect(self, call: Call) -> None:
        await self._ended.wait()  # until then, the body has all messages
        while (await call.request.receive())["type"] != "http.disconnect":
            pass


# -- models ------------------------------------------------------------------


class UpstreamModel(msgspec.Struct):
    """A model in an upstream's list, in OpenAI's or in Anthropic's format."""

    id: str
    created: Any = 0
    display_name: str | None = None


class _Page(msgspec.Struct):
    data: list[UpstreamModel]


_Fetches = OrderedDict[str | None, tuple[float, asyncio.Task[list[UpstreamModel]]]]
_fetches: Final = WeakKeyDictionary[Model, _Fetches]()
"""For each client, the calls that fetch lists of models, with the time when each is made again, by the user of the upstream's key."""


async def list_upstream_models(call: Call) -> list[UpstreamModel]:
    """Return the models of the default upstream. The list is empty if the upstream does not answer in time, or has no such list."""
    llm = call.hf.roster.find_llm(None)
    forward = _find_forward(llm.client)
    if forward is None or (call.caller.passthrough and call.caller.upstream is None):
        return []
    fetches, owner = _fetches.setdefault(llm.client, OrderedDict()), call.get_user() if call.caller.upstream else None
    now = asyncio.get_running_loop().time()
    until, task = fetches.get(owner, (0.0, None))
    if task is None or now >= until:
        path = "/models?limit=1000" if llm.dialect == "anthropic" else "/models"
        task = asyncio.ensure_future(_fetch_models(forward("GET", path, call.handed)))
        fetches[owner] = (now + _MODELS_FRESH_SECONDS, task)
        trim_cache(fetches, owner)
    return await asyncio.shield(task)


async def _fetch_models(answer: AsyncGenerator[Any, None]) -> list[UpstreamModel]:
    data = bytearray()
    try:
        async with asyncio.timeout(_MODELS_SECONDS), aclosing(answer):
            async for piece in answer:
                if isinstance(piece, bytes) and len(data) < MODEL_EVENT_BYTES:
                    data += piece
        return msgspec.json.decode(data, type=_Page).data
    except Exception as exc:  # noqa: BLE001 - whatever the upstream does, a client gets its list of models
        _log.info("the upstream's models are not listed: %s", type(exc).__name__)
        return []
