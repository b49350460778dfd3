"""The playground: chat with an agent or a model, and see the prompt of its last call.

A message is a request to `POST /v1/chat/completions` with the caller's rights, and its session is an ordinary one. With the script of the
pages, the reply is streamed as plain text, and an error follows the character U+001E. Without the script, the page shows the whole reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, Final, Self

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.config.gateway import Gateway
from holdfast.context.settings import BUILT_IN, STRATEGIES
from holdfast.domain.session import DEFAULT_USER, Session
from holdfast.errors import HoldfastError, InvalidRequest, SessionNotFound, UserNotFound
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.inspector.access import redirect
from holdfast.server.inspector.actions import read_form
from holdfast.server.inspector.frame import HEADERS, HTML, PageQuery, hides_content, make_url, render, spell_controls
from holdfast.server.inspector.prompt import find_call_id
from holdfast.server.inspector.transcript import Block, join_results
from holdfast.server.limits import PLAYGROUND_MESSAGES
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.sessions.prompt_views import NEXT, PromptView

routes = Routes("inspector")
_PATH: Final = "/inspect/playground"
_ERROR: Final = "\x1e"
"""Character of the stream before an error."""
_OFFERED: Final = 20
"""Sessions whose ids the form offers."""
_CHAT: Final = "/v1/chat/completions"


class PlaygroundQuery(PageQuery, kw_only=True):
    """Query parameters of the playground, which are also fields of its form: who answers, in which session, with which prompt."""

    session_id: str | None = None
    """The session; None: a new one."""
    user_id: str | None = None
    agent: str | None = None
    model: str | None = None
    strategy: str | None = None
    budget: str | None = None
    """Budget of the prompt in tokens, as text."""

    @classmethod
    def from_form(cls, form: Mapping[str, list[str]]) -> Self:
        """Return the settings in a form. Empty fields are None."""
        names = [name for name in cls.__struct_fields__ if name != "notice"]
        return cls(**{name: form.get(name, [""])[0].strip() or None for name in names})

    @property
    def fields(self) -> dict[str, str]:
        """The parameters that are given."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value and name != "notice"}

    def make_request(self, text: str, *, stream: bool) -> dict[str, Any]:
        """Return the chat request with this message."""
        fields: dict[str, Any] = self.fields
        if self.budget and self.budget.isascii() and self.budget.isdecimal():
            fields["budget"] = int(self.budget[:18])
        # `delta`: the message is new, even if it repeats an earlier one.
        more = {"stream": True, "stream_options": {"include_progress": True}} if stream else {}
        messages = [{"role": "user", "content": text}]
        return {**fields, **more, "messages": messages, "session_mode": "delta", "on_disconnect": "cut"}


@routes.add("GET", _PATH, "write", answer=HTML)
async def show_playground(call: Call, query: PlaygroundQuery) -> Reply:
    """Return the page of a conversation, or an empty one."""
    return await _show(call, query)


async def _show(call: Call, query: PlaygroundQuery, *, error: str = "", status: int = 200, text: str = "") -> Reply:
    roster = call.hf.roster
    gateway: Gateway = call.request.app.state.gateway
    session = await _find_session(call, query)
    view = await _view_last_prompt(call, session) if session is not None else None
    return await render(
        call,
        "playground.html",
        title="Playground",
        status=status,
        query=query,
        error=error,
        text=text,
        session=session,
        messages=await _read_messages(call, session) if session is not None else (),
        view=view,
        most=PLAYGROUND_MESSAGES,
        agents=roster.agents,
        models=list(roster.llms),
        strategies=[name for name in STRATEGIES if name in gateway.allowed_strategies or name not in BUILT_IN],
        recent=await _list_recent(call, query),
    )


async def _list_recent(call: Call, query: PlaygroundQuery) -> Sequence[Session]:
    """Return the most recently used sessions, whose ids the form offers."""
    try:
        return (await call.hf.sessions(user_id=call.get_owner(query.user_id), limit=_OFFERED)).sessions
    except HoldfastError:
        return ()


async def _find_session(call: Call, query: PlaygroundQuery) -> Session | None:
    """Return the session of the conversation, or None if it does not exist or the caller may not see it."""
    if query.session_id is None:
        return None
    try:
        return await get_session_by_id(call.hf, query.session_id, call.get_owner(query.user_id))
    except (InvalidRequest, SessionNotFound, UserNotFound):
        return None


async def _read_messages(call: Call, session: Session) -> list[Block]:
    """Return the newest messages of a session. A result of a tool is a part of its call, if the call is among them."""
    found = await call.hf.store.entries(session.ref, limit=PLAYGROUND_MESSAGES, descending=True, notes=True)
    return list(join_results(found[::-1]))


async def _view_last_prompt(call: Call, session: Session) -> PromptView | None:
    """Return the prompt of the session's last model call, or None if there is none or it cannot be shown."""
    call_id = await find_call_id(call, session, None)
    if call_id == NEXT:
        return None
    try:
        return await call.hf.handle(session).prompt(call_id)
    except HoldfastError:
        return None


# -- sending a message -----------------------------------------------------------


@routes.add("POST", f"{_PATH}/send", "write", answer=HTML)
async def send(call: Call) -> Reply:
    """Send a message, and return the reply: streamed for the script, as a page for browsers without it."""
    form = await read_form(call)
    query = PlaygroundQuery.from_form(form)
    text = form.get("message", [""])[0].replace("\r\n", "\n")
    if not text.strip():
        return await _show(call, query, error="The message is empty: write something.", status=400)
    if query.session_id is None:
        query.session_id = f"playground-{token_hex(6)}"
    elif (session := await _find_session(call, query)) is not None and session.user_id != DEFAULT_USER:
        query.user_id = session.user_id  # otherwise a chat request belongs to the user `default`
    target = make_url(_PATH, **query.fields)
    if "text/event-stream" in call.request.headers.get("accept", ""):
        return Reply(PlainStream(call, query.make_request(text, stream=True), target))
    answer = await _collect(call, query.make_request(text, stream=False))
    if "error" in answer:
        error = answer["error"]
        return await _show(call, query, error=error["message"], status=answer["status"], text=text)
    return redirect(target)


async def _ask(call: Call, body: dict[str, Any], send: Send) -> None:
    """Send a chat request to this server, with the caller of the page. When the browser disconnects, the request ends as usual.

    Args:
        call: the page's request.
        body: body of the chat request.
        send: ASGI function that gets the response.
    """
    content: bytes | None = msgspec.json.encode(body)

    async def receive() -> Message:
        nonlocal content
        if content is None:
            return await call.request.receive()
        message: Message = {"type": "http.request", "body": content, "more_body": False}
        content = None
        return message

    kept = [(name, value) for name, value in call.request.scope["headers"] if name in (b"host", b"user-agent")]
    scope = {
        **{name: value for name, value in call.request.scope.items() if name not in ("path_params", "endpoint")},
        "path": _CHAT,
        "raw_path": _CHAT.encode(),
        "query_string": b"",
        "headers": [*kept, (b"content-type", b"application/json")],
        "state": {"caller": call.caller},
    }
    await call.request.app.router(scope, receive, send)


async def _collect(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a chat request, with its status."""
    status, chunks = 200, list[bytes]()

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        chunks.append(message.get("body", b""))

    await _ask(call, body, send)
    return {**msgspec.json.decode(b"".join(chunks) or b"{}"), "status": status}


class PlainStream(Response):
    """A reply as a stream of plain text. An error follows the character U+001E.

    Args:
        call: the page's request.
        body: body of the chat request.
        target: address of the page to load after the reply.
    """

    def __init__(self, call: Call, body: dict[str, Any], target: str) -> None:
        self._call = call
        self._body = body
        self._sent_headers = {**HEADERS, "content-type": "text/plain; charset=utf-8", "x-next": target}
        self._hides_content = hides_content(call.request.scope, call.caller)
        self._rest = b""
        self._is_error = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply."""

        async def convert(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._is_error = message["status"] >= 400
                headers = [(name.encode(), value.encode()) for name, value in self._sent_headers.items()]
                await send({"type": message["type"], "status": 200, "headers": headers})
            else:
                more = message.get("more_body", False)
                text = self._read(message.get("body", b""), is_last=not more)
                await send({**message, "body": text.encode(errors="replace")})

        await _ask(self._call, self._body, convert)

    def _read(self, chunk: bytes, *, is_last: bool) -> str:
        """Return the text in the next chunk of the response."""
        self._rest += chunk
        if self._is_error:
            return self._format(msgspec.json.decode(self._rest)) if is_last else ""
        *events, self._rest = self._rest.split(b"\n\n")
        found = [msgspec.json.decode(one.removeprefix(b"data: ")) for one in events if one.startswith(b"data: {")]
        return "".join(map(self._format, found))

    def _format(self, event: Mapping[str, Any]) -> str:
        """Return the text of one chunk of a reply: its words, and the calls of tools with their arguments."""
        if "error" in event:
            return _ERROR + spell_controls(str(event["error"]["message"]))
        if self._hides_content:
            return ""
        if (status := event.get("holdfast")) is not None:
            return f"\n[{status.get('tool') or status.get('agent')}: {status.get('status')}]\n"
        delta = (event.get("choices") or [{}])[0].get("delta") or {}
        parts = [delta.get("content") or ""]
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            parts += [f"\n[{function['name']}] " if function.get("name") else "", function.get("arguments") or ""]
        return spell_controls("".join(parts))
