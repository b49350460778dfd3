"""The playground: chat with an agent or a model, and see the prompt of its last call.

A message is a request to `POST /v1/chat/completions` with the caller's rights, and its session is an ordinary one. With the script of the
pages, the reply is streamed as plain text, and an error follows the character U+001E. Without the script, the page shows the whole reply.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final, Self

import msgspec

from holdfast.config.gateway import Gateway
from holdfast.context.settings import BUILT_IN, STRATEGIES
from holdfast.domain.session import DEFAULT_USER, Session
from holdfast.errors import HoldfastError, InvalidRequest, SessionNotFound, UserNotFound
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.inspector.access import redirect
from holdfast.server.inspector.actions import check_form
from holdfast.server.inspector.frame import HEADERS, HTML, PageQuery, PageView, make_url, render, spell_controls
from holdfast.server.inspector.prompt import SECTIONS, find_call_id, make_bar
from holdfast.server.inspector.prompt import show_messages as show_prompt_messages
from holdfast.server.inspector.prompt_words import WORDS
from holdfast.server.inspector.rest import call_rest, make_path, open_rest
from holdfast.server.limits import PLAYGROUND_MESSAGES
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.sessions.prompt_views import NEXT, PromptQuery, PromptView, view_prompt

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
        # The free part of a large budget would hide the sections, so it is shown as a number and not in the bar.
        bar=[one for one in make_bar(view) if one.name != "headroom"] if view else (),
        free=sum(one.tokens for one in view.sections if one.name == "free") if view else 0,
        sections=SECTIONS,
        **WORDS,
        sent=list(show_prompt_messages(view))[-PLAYGROUND_MESSAGES:] if view else (),
        agents=roster.agents,
        models=list(roster.llms),
        strategies=[name for name in STRATEGIES if name in gateway.allowed_strategies or name not in BUILT_IN],
        recent=await _list_recent(call, query),
    )


async def _list_recent(call: Call, query: PlaygroundQuery) -> list[Mapping[str, Any]]:
    """Return the most recently used sessions, whose ids the form offers."""
    user = {"user_id": query.user_id} if query.user_id else {}
    status, answer = await call_rest(call, "GET", "/v1/sessions", query={**user, "limit": str(_OFFERED)})
    return answer["data"] if status == 200 else []


async def _find_session(call: Call, query: PlaygroundQuery) -> Session | None:
    """Return the session of the conversation, or None if it does not exist or the caller may not see it."""
    if query.session_id is None:
        return None
    try:
        return await get_session_by_id(call.hf, query.session_id, call.get_owner(query.user_id))
    except (InvalidRequest, SessionNotFound, UserNotFound):
        return None


async def _read_messages(call: Call, session: Session) -> list[ShownMessage]:
    """Return the newest messages of a session."""
    path = make_path("/v1/sessions/{session_id}/messages", session_id=session.id)
    query = {"user_id": session.user_id, "order": "desc", "limit": str(PLAYGROUND_MESSAGES)}
    status, answer = await call_rest(call, "GET", path, query=query)
    return show_messages(answer["data"][::-1]) if status == 200 else []


async def _view_last_prompt(call: Call, session: Session) -> PromptView | None:
    """Return the prompt of the session's last model call, or None if there is none or it cannot be shown."""
    call_id = await find_call_id(call, session, None)
    if call_id == NEXT:
        return None
    try:
        return await view_prompt(
            call.hf.engine, session.ref, call.hf.handle(session).responder, PromptQuery(id=call_id)
        )
    except HoldfastError:
        return None


@dataclass(kw_only=True)
class ShownCall:
    """A call of a tool, with its result."""

    name: str
    arguments: str
    result: Any = None
    """Content of the result; None: there is none."""


@dataclass(kw_only=True)
class ShownMessage:
    """A message as the page shows it."""

    role: str
    texts: list[str]
    media: list[str]
    """Types of the parts that are not text."""
    calls: list[ShownCall]
    tokens: int | None = None
    is_erased: bool = False

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Self:
        """Convert a message of the API."""
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}] if content else []
        calls = [(call.get("function") or call.get("custom") or {}) for call in message.get("tool_calls") or ()]
        return cls(
            role=message["role"],
            texts=[part["text"] for part in parts if isinstance(part.get("text"), str)],
            media=[str(part.get("type")) for part in parts if not isinstance(part.get("text"), str)],
            calls=[
                ShownCall(name=str(one.get("name")), arguments=str(one.get("arguments") or one.get("input") or ""))
                for one in calls
            ],
            tokens=message.get("tokens"),
            is_erased=message.get("erased", False),
        )


def show_messages(messages: Iterable[Mapping[str, Any]]) -> list[ShownMessage]:
    """Convert messages of the API. A result of a tool becomes a part of its call, if the call is among them."""
    open_calls: dict[str, ShownCall] = {}
    shown = []
    for message in messages:
        call = open_calls.pop(message.get("tool_call_id") or "", None)
        if call is not None:
            call.result = message.get("content") or ""
            continue
        shown.append(ShownMessage.from_json(message))
        ids = [one["id"] for one in message.get("tool_calls") or ()]
        open_calls.update(zip(ids, shown[-1].calls, strict=True))
    return shown


# -- sending a message -----------------------------------------------------------


@routes.add("POST", f"{_PATH}/send", "write", answer=HTML)
async def send(call: Call) -> Reply:
    """Send a message, and return the reply: streamed for the script, as a page for browsers without it."""
    form = await call.read_form()
    check_form(call, form)
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
        hides = PageView.from_call(call, "").hides_content
        chunks = _stream(call, query.make_request(text, stream=True), hides_content=hides)
        headers = {**HEADERS, "content-type": "text/plain; charset=utf-8", "x-next": target}
        return Reply(chunks, headers=headers)
    status, answer = await call_rest(call, "POST", _CHAT, body=query.make_request(text, stream=False))
    if status >= 400:
        return await _show(call, query, error=answer["error"]["message"], status=status, text=text)
    return redirect(target)


async def _stream(call: Call, body: dict[str, Any], *, hides_content: bool) -> AsyncGenerator[bytes, None]:
    """Yield the reply as plain text. Closing the generator stops the reply, as a client that disconnects does."""
    answer = await open_rest(call, "POST", _CHAT, body=body)
    async with aclosing(answer.chunks) as chunks:
        if answer.status >= 400:
            data = b"".join([chunk async for chunk in chunks])
            yield _encode_error(msgspec.json.decode(data))
            return
        async for event in _read_events(chunks):
            if "error" in event:
                yield _encode_error(event)
            elif not hides_content and (text := format_event(event)):
                yield spell_controls(text).encode(errors="replace")


async def _read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Yield the data of server-sent events."""
    rest = b""
    async for chunk in chunks:
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                yield msgspec.json.decode(event.removeprefix(b"data: "))


def format_event(event: Mapping[str, Any]) -> str:
    """Return the text of one chunk of a streamed reply: its words, and the calls of tools with their arguments."""
    if (status := event.get("holdfast")) is not None:
        return f"\n[{status.get('tool') or status.get('agent')}: {status.get('status')}]\n"
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    parts = [delta.get("content") or ""]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        parts += [f"\n[{function['name']}] " if function.get("name") else "", function.get("arguments") or ""]
    return "".join(parts)


def _encode_error(answer: Mapping[str, Any]) -> bytes:
    return f"{_ERROR}{spell_controls(str(answer['error']['message']))}".encode(errors="replace")
