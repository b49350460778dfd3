"""How the server listens and who may call it: the keys `gateway` and `auth`."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from holdfast.context.settings import FREE_STRATEGIES, STRATEGIES
from holdfast.limits import ID_BYTES, MESSAGE_BYTES, Limits
from holdfast.settings import (
    Count,
    Mistake,
    Most,
    Names,
    Port,
    Settings,
    Size,
    Text,
    Timeout,
    Url,
    check_header_names,
    check_url,
)
from holdfast.stores.keys import Role


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

    def find_mistakes(self) -> list[Mistake]:
        """See `Settings.find_mistakes`."""
        names = {"user_headers": self.user_headers, "session_headers": self.session_headers}
        found = [mistake for key, headers in names.items() for mistake in check_header_names(key, headers)]
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


# -- auth ------------------------------------------------------------------------

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "ES256K"),
    "EdDSA",
)
"""How a token may be signed: with a key that only its issuer has. Those with a shared secret are none of them."""


class Jwt(Settings, frozen=True, kw_only=True):
    """Tokens of somebody else's that are taken, beside API keys."""

    jwks_url: Url | None = None
    """Where the issuer's public keys are."""
    jwks_file: Text | None = None
    """Or a file with them."""
    issuer: Text
    """What `iss` must be."""
    audience: Names
    """What `aud` must be, or have in it."""
    algorithms: Names = ("RS256", "ES256", "EdDSA")
    """How tokens may be signed; also RS384, RS512, PS256, PS384, PS512, ES384, ES512, ES256K."""
    user_claim: Text = "sub"
    """The claim that names the user; a token without it is refused."""
    tenant_claim: Text | None = None
    """The claim that names the tenant; a token without it is refused. Unset: `tenant`."""
    tenant: Text | None = None
    """Whose sessions every token opens, where no claim says; unset: the server's own tenant."""
    role_claim: Text | None = None
    """The claim that says `read`, `write` or `admin`, or a list with one of them in it."""
    role: Role = "write"
    """Of tokens that do not say."""
    leeway: Annotated[float, Meta(ge=0, le=600, extra={"form": "duration"})] = 30.0
    """Seconds by which clocks may differ."""

    def find_mistakes(self) -> list[Mistake]:
        found = check_url("jwks_url", self.jwks_url)
        if (self.jwks_url is None) == (self.jwks_file is None):
            found.append(("jwks_url", "give one of jwks_url and jwks_file"))
        parts = urlsplit(self.jwks_url or "")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            found.append(("jwks_url", "must begin with https://: whoever changes the keys on the way may come in"))
        wrong = [name for name in self.algorithms if name not in ALGORITHMS]
        found += [("algorithms", f"{name!r} is none of {', '.join(ALGORITHMS)}") for name in wrong]
        found += [(key, "is empty") for key in ("algorithms", "audience") if not getattr(self, key)]
        if self.tenant is not None and self.tenant_claim is not None:
            found.append(("tenant", "the claim says it; remove one of the two"))
        if self.tenant is not None and len(self.tenant.encode()) > ID_BYTES:
            found.append(("tenant", f"has more than {ID_BYTES} bytes"))
        return found


class Auth(Settings, frozen=True, kw_only=True):
    """Who may come in."""

    required: bool | None = None
    """Whether nobody comes in without a key or a token; unset: as soon as the store has a key, or `jwt` is set."""
    rate: Count = 0
    """Requests a minute with one key, or of one user of `jwt`; 0: any number. A key may have a rate of its own."""
    burst: Count = 0
    """How many of them may come at once; 0: those of a quarter of a minute."""
    jwt: Jwt | None = None

    @property
    def kind(self) -> Literal["never", "always", "keys"]:
        """When somebody is asked who they are: `keys` is as soon as there is one."""
        if self.required is not None:
            return "always" if self.required else "never"
        return "keys" if self.jwt is None else "always"
