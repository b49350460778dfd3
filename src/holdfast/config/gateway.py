"""Define the keys `gateway` and `auth`: how the server listens, and who may call it."""

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
    """Time limits of an upstream. A plain duration instead of the mapping is `total`."""

    connect: Timeout = 10.0
    """Seconds to connect."""
    read: Timeout = 300.0
    """Seconds without data, before the first token or between two."""
    total: Timeout = 1800.0
    """Seconds for the whole call."""


_LIMITS: Final = Limits()


PRESETS: Final = {"mistralrs": {"single_user": True, "session_mode": "transcript"}}
"""Keys that a preset sets, by its name."""


class Gateway(Settings, frozen=True, kw_only=True):
    """The HTTP server."""

    host: Text = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8377
    """Port; 0: any free port."""
    max_body: Size = _LIMITS.body
    """Maximum bytes of a request."""
    max_message: Annotated[int, Meta(ge=1 << 10, le=MESSAGE_BYTES, extra={"form": "size"})] = _LIMITS.message
    """Maximum bytes of a message."""
    max_messages: Most = _LIMITS.messages
    """Maximum messages of a request."""
    max_parts: Most = _LIMITS.parts
    """Maximum parts of a message's content."""
    max_tool_calls: Most = _LIMITS.tool_calls
    """Maximum tool calls of a message."""
    max_tools: Most = _LIMITS.tools
    """Maximum tools of a request."""
    max_media: Annotated[int, Meta(ge=1 << 10, le=MESSAGE_BYTES, extra={"form": "size"})] = _LIMITS.media
    """Maximum bytes of an image, recording, video or file in a message."""
    max_media_count: Most = _LIMITS.media_count
    """Maximum number of media in a request."""
    max_pixels: Annotated[int, Meta(ge=1, le=10**10)] = _LIMITS.pixels
    """Maximum width times height of an image, according to its header."""
    max_speech: Annotated[int, Meta(ge=1, le=1 << 20, extra={"form": "size"})] = _LIMITS.speech
    """Maximum bytes of a text for `POST …/speak`."""
    body_timeout: Timeout = _LIMITS.body_timeout
    """Seconds in which a request's body must arrive."""
    upstream_timeout: Timeouts = Timeouts()
    """Time limits of every llm without a `timeout`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log messages."""
    shutdown_grace: Annotated[float, Meta(ge=0, le=86_400, extra={"form": "duration"})] = 10.0
    """Seconds that running turns get at shutdown."""
    keep_alive: Annotated[float, Meta(ge=0, le=86_400, extra={"form": "duration"})] = 15.0
    """Seconds without an event after which a stream sends a keep-alive; 0: never."""
    on_disconnect: Literal["cut", "finish"] = "cut"
    """What to do with a reply when its client disconnects: cut it and mark it, or finish it. It is stored either way."""
    send_timeout: Timeout = 60.0
    """Seconds that a client may leave data unread before it counts as disconnected."""
    upstream_auth: Literal["server", "passthrough"] = "server"
    """Key for calls of the upstream: the server's own, or the client's bearer token."""
    match: Literal["on", "off"] = "on"
    """Match requests without a session id to sessions by their content; `session_match` of a request overrides it."""
    match_system: Literal["rank", "strict"] = "rank"
    """Effect of a different system prompt on matching: a lower rank, or no match."""
    user_headers: Names = ()
    """Headers that name the user of a chat request that names none itself, for a trusted proxy or chat UI. Anyone who reaches the server
    can send them.
    """
    session_headers: Names = ()
    """Headers that name the session, in addition to `X-Session-Id`."""
    require_user: bool = False
    """Reject chat requests without a user, which would belong to the user `default`."""
    single_user: bool = False
    """All requests without a user come from one person: the user `default` counts as identified."""
    session_mode: Literal["auto", "transcript", "delta"] = "auto"
    """How the messages of a request that names a session are read: as the whole conversation (`transcript`), as new messages (`delta`),
    or detected (`auto`).
    """
    pass_fields: Names = ()
    """Fields of a chat request that are passed to the provider without a warning, whatever their names."""
    allowed_strategies: Names = FREE_STRATEGIES
    """Strategies that a chat request may name in addition to its agent's own; unset: those that call no model."""
    session_queue: Literal["queue", "reject", "interrupt"] = "queue"
    """What happens to a request while a turn of its session is running: it waits, is rejected, or ends that turn."""
    queue_timeout: Timeout = 300.0
    """Maximum seconds that a request waits for its session's turn."""
    max_tool_rounds: Annotated[int, Meta(ge=0, le=1000)] = 25
    """Model calls in a turn with server-side tools, after which the model answers without them; 0: no tools run."""
    max_tool_result: Size = 64 * 1024
    """Maximum bytes of a tool's result; of a longer one the model gets the head and the tail."""
    tool_timeout: Timeout = 60.0
    """Maximum seconds of a tool call."""
    allowed_hosts: Names = ()
    """Host names under which this server may be called, in addition to loopback. Unset: any if keys are required. `GET /healthz` and
    `GET /readyz` are answered under any name.
    """
    cors_origins: Names = ()
    """Origins of web pages that may call the server, like `https://app.example.com`."""

    def find_mistakes(self) -> list[Mistake]:
        names = {"user_headers": self.user_headers, "session_headers": self.session_headers}
        found = [mistake for key, headers in names.items() for mistake in check_header_names(key, headers)]
        unknown = [name for name in self.allowed_strategies if name not in STRATEGIES]
        known = f"known: {', '.join(STRATEGIES)}"
        return [*found, *(("allowed_strategies", f"unknown strategy {name[:80]!r}; {known}") for name in unknown)]

    @property
    def limits(self) -> Limits:
        """Limits of a request."""
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
    """Return True if a server that listens on `host` can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: its DNS decides where it leads
        return False


# -- auth ------------------------------------------------------------------------

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "ES256K"),
    "EdDSA",
)
"""Supported signatures of tokens: by a key that only the issuer has. Algorithms with a shared secret are excluded."""


class Jwt(Settings, frozen=True, kw_only=True):
    """Tokens of another issuer that are accepted in addition to API keys."""

    jwks_url: Url | None = None
    """URL of the issuer's public keys."""
    jwks_file: Text | None = None
    """File with the issuer's public keys."""
    issuer: Text
    """Required value of `iss`."""
    audience: Names
    """Required value of `aud`, or one of its values."""
    algorithms: Names = ("RS256", "ES256", "EdDSA")
    """Accepted signatures of tokens; also RS384, RS512, PS256, PS384, PS512, ES384, ES512, ES256K."""
    user_claim: Text = "sub"
    """Claim with the user; a token without it is rejected."""
    tenant_claim: Text | None = None
    """Claim with the tenant; a token without it is rejected. Unset: `tenant`."""
    tenant: Text | None = None
    """Tenant of all tokens, without a claim; unset: the server's own tenant."""
    role_claim: Text | None = None
    """Claim with `read`, `write` or `admin`; a token with another value or a list is rejected. Unset: `role`."""
    role: Role = "write"
    """Role of tokens without the claim."""
    leeway: Annotated[float, Meta(ge=0, le=600, extra={"form": "duration"})] = 30.0
    """Maximum seconds by which clocks may differ."""

    def find_mistakes(self) -> list[Mistake]:
        found = check_url("jwks_url", self.jwks_url)
        if (self.jwks_url is None) == (self.jwks_file is None):
            found.append(("jwks_url", "give one of jwks_url and jwks_file"))
        parts = urlsplit(self.jwks_url or "")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            found.append(
                ("jwks_url", "must start with https://, because an attacker could replace the keys in transit")
            )
        wrong = [name for name in self.algorithms if name not in ALGORITHMS]
        found += [("algorithms", f"{name!r} is not supported; use {', '.join(ALGORITHMS)}") for name in wrong]
        found += [(key, "is empty") for key in ("algorithms", "audience") if not getattr(self, key)]
        if self.tenant is not None and self.tenant_claim is not None:
            found.append(("tenant", "set together with `tenant_claim`; remove one of the two"))
        if self.tenant is not None and len(self.tenant.encode()) > ID_BYTES:
            found.append(("tenant", f"has more than {ID_BYTES} bytes"))
        return found


class Auth(Settings, frozen=True, kw_only=True):
    """Authentication and rate limits."""

    required: bool | None = None
    """Require a key or a token; unset: as soon as the store has a key, or `jwt` is set."""
    rate: Count = 0
    """Requests per minute of one key, or of one user of `jwt`; 0: no limit. A key may have its own rate."""
    burst: Count = 0
    """Requests that may arrive at once; 0: those of a quarter of a minute."""
    jwt: Jwt | None = None

    @property
    def kind(self) -> Literal["never", "always", "keys"]:
        """When authentication is required; `keys`: as soon as there is a key."""
        if self.required is not None:
            return "always" if self.required else "never"
        return "keys" if self.jwt is None else "always"
