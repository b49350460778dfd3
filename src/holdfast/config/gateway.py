"""The section `gateway`: how the server listens, what a request may bring, and how turns are served."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final, Literal

from msgspec import Meta

from holdfast.config.kinds import Mistake, Most, Names, Port, Settings, Size, Text, Timeout, header_name_mistakes
from holdfast.context.request_settings import FREE_STRATEGIES
from holdfast.context.settings import STRATEGIES
from holdfast.limits import MESSAGE_BYTES, Limits


class Timeouts(Settings, frozen=True, kw_only=True):
    """How long an upstream may take. A plain duration instead of the mapping is `total`."""

    connect: Timeout = 10.0
    """Seconds to reach it."""
    read: Timeout = 300.0
    """Seconds of silence, before the first token or between two."""
    total: Timeout = 1800.0
    """Seconds for the whole call."""


_LIMITS: Final = Limits()


PRESETS: Final = {"mistralrs": {"single_user": True, "session_mode": "transcript"}}
"""Keys that a preset sets, by its name."""


class Gateway(Settings, frozen=True, kw_only=True):
    """The HTTP server."""

    host: Text = "127.0.0.1"
    """Where it listens."""
    port: Port = 8377
    """0: any free one."""
    max_body: Size = _LIMITS.body
    """Largest request, bytes."""
    max_message: Annotated[int, Meta(ge=1 << 10, le=MESSAGE_BYTES, extra={"form": "size"})] = _LIMITS.message
    """Largest message in it, bytes."""
    max_messages: Most = _LIMITS.messages
    """Messages in a request."""
    max_parts: Most = _LIMITS.parts
    """Parts of a message's content."""
    max_tool_calls: Most = _LIMITS.tool_calls
    """Tool calls of a message."""
    max_tools: Most = _LIMITS.tools
    """Tools in a request."""
    max_media: Annotated[int, Meta(ge=1 << 10, le=MESSAGE_BYTES, extra={"form": "size"})] = _LIMITS.media
    """Largest image, recording, video or file in a message, bytes."""
    max_media_count: Most = _LIMITS.media_count
    """How many of them there may be in a request."""
    max_pixels: Annotated[int, Meta(ge=1, le=10**10)] = _LIMITS.pixels
    """Width times height of an image, by its header."""
    max_speech: Annotated[int, Meta(ge=1, le=1 << 20, extra={"form": "size"})] = _LIMITS.speech
    """Longest text that is spoken from outside, bytes."""
    body_timeout: Timeout = _LIMITS.body_timeout
    """Seconds a request's body may take to arrive."""
    upstream_timeout: Timeouts = Timeouts()
    """For every llm that has no `timeout`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of what is logged."""
    shutdown_grace: Annotated[float, Meta(ge=0, le=86_400, extra={"form": "duration"})] = 10.0
    """Seconds that running turns get to end."""
    keep_alive: Annotated[float, Meta(ge=0, le=86_400, extra={"form": "duration"})] = 15.0
    """Seconds without an event after which a stream says that it is still there; 0: it never does."""
    on_disconnect: Literal["cut", "finish"] = "cut"
    """What becomes of a reply whose client has gone: it is cut and marked, or made to its end. It is stored either way."""
    send_timeout: Timeout = 60.0
    """Seconds that a client may leave what it was sent unread; then it counts as gone."""
    upstream_auth: Literal["server", "passthrough"] = "server"
    """Whose key the upstream is called with: the server's own, or the client's bearer token."""
    match: Literal["on", "off"] = "on"
    """Whether a request that names no session is recognised by what it says; `session_match` of a request decides for it."""
    match_system: Literal["rank", "strict"] = "rank"
    """What another system prompt means to that: a lower rank, or that it is not the session."""
    user_headers: Names = ()
    """Headers that name the user of a chat request that names none itself, for a trusted proxy or chat UI. Anybody who reaches the server can send them."""
    session_headers: Names = ()
    """Headers that name the session, besides `X-Session-Id`."""
    require_user: bool = False
    """Whether a chat request is refused that names no user, and would belong to the user `default`."""
    single_user: bool = False
    """Whether all requests that name no user are from one person: then the user `default` counts as identified."""
    session_mode: Literal["auto", "transcript", "delta"] = "auto"
    """How the messages of a request that names a session are read: as the whole conversation (`transcript`), as new ones (`delta`), or by what they are."""
    pass_fields: Names = ()
    """Fields of a chat request that are passed to the provider without a warning, whatever they are called."""
    allowed_strategies: Names = FREE_STRATEGIES
    """Strategies that a chat request may name besides its agent's own; unset: those that call no model."""
    session_queue: Literal["queue", "reject", "interrupt"] = "queue"
    """What becomes of a request while a turn of its session runs: it waits, is refused, or ends that turn."""
    queue_timeout: Timeout = 300.0
    """Seconds that a request waits for its session's turn."""
    max_tool_rounds: Annotated[int, Meta(ge=0, le=1000)] = 25
    """Calls of the model in a turn whose tools run here, after which it answers without them; 0: no tool runs here."""
    max_tool_result: Size = 64 * 1024
    """Bytes of a tool's result; of a longer one the model is given head and tail."""
    tool_timeout: Timeout = 60.0
    """Seconds that a tool may run."""
    allowed_hosts: Names = ()
    """Names by which this server may be called; loopback's always. Unset: with keys any."""
    cors_origins: Names = ()
    """Origins of pages that may call it, like `https://app.example.com`."""

    def mistakes(self) -> list[Mistake]:
        """See `Settings.mistakes`."""
        names = {"user_headers": self.user_headers, "session_headers": self.session_headers}
        found = [mistake for key, headers in names.items() for mistake in header_name_mistakes(key, headers)]
        unknown = [name for name in self.allowed_strategies if name not in STRATEGIES]
        known = f"known: {', '.join(STRATEGIES)}"
        return [*found, *(("allowed_strategies", f"unknown strategy {name[:80]!r}; {known}") for name in unknown)]

    @property
    def limits(self) -> Limits:
        """What a request may bring."""
        return Limits(
            body=self.max_body,
            message=self.max_message,
            messages=self.max_messages,
            parts=self.max_parts,
            tool_calls=self.max_tool_calls,
            tools=self.max_tools,
            media=self.max_media,
            media_count=self.max_media_count,
            pixels=self.max_pixels,
            speech=self.max_speech,
            body_timeout=self.body_timeout,
        )


def is_loopback(host: str) -> bool:
    """Whether a server that listens there is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: whoever answers for it decides where it leads
        return False
