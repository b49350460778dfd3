"""Define the keys `gateway`, `inspector` and `auth`: settings of the HTTP server, its pages, and of authentication."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from holdfast.context.settings import FREE_STRATEGIES, STRATEGIES
from holdfast.hosts import is_loopback, is_network
from holdfast.limits import BODY_BYTES, MEDIA_BYTES, MESSAGE_BYTES
from holdfast.sections import (
    Count,
    Mistake,
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


class Gateway(Settings, frozen=True, kw_only=True):
    """The HTTP server."""

    host: Text = "127.0.0.1"
    """Address on which the server listens."""
    port: Port = 8377
    """Port on which the server listens. 0: any free port."""
    max_body: Size = BODY_BYTES
    """Maximum bytes of a request."""
    max_media: Annotated[int, Meta(ge=1 << 10, le=MESSAGE_BYTES, extra={"form": "size"})] = MEDIA_BYTES
    """Maximum bytes of an image, recording, video or file in a message."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log messages."""
    shutdown_grace: Annotated[float, Meta(ge=0, le=86_400, extra={"form": "duration"})] = 10.0
    """Maximum seconds that the server waits for running turns at shutdown."""
    keep_alive: Annotated[float, Meta(ge=0, le=86_400, extra={"form": "duration"})] = 15.0
    """Seconds without an event after which a stream sends a keep-alive. 0: never."""
    on_disconnect: Literal["cut", "finish"] = "cut"
    """If the client disconnects during a reply, `cut` stops the reply and marks it as cut, and `finish` completes it. Both store the
    reply."""
    send_timeout: Timeout = 60.0
    """Maximum seconds that a client may leave data unread. After that, the client is treated as disconnected."""
    upstream_auth: Literal["server", "passthrough"] = "server"
    """Key for calls of the upstream: the server's own key (`server`), or the client's bearer token (`passthrough`)."""
    passthrough: bool = True
    """Pass requests for routes of the model's API that Holdfast does not serve, such as `/v1/embeddings`, to the upstream. They are not
    recorded.
    """
    match: Literal["on", "off", "anyone"] = "on"
    """Find the session of a request without a session id by its messages. `on`: if the user is identified. `anyone`: also for requests that
    name no user, so that people who begin with the same words can get into each other's sessions. The field `session_match` of a request
    can turn matching on or off, but not for more callers than this key does.
    """
    user_headers: Names = ()
    """Headers that name the user of a chat request whose body names no user. Use them only behind a trusted proxy or chat UI, because
    anyone who reaches the server can send them.
    """
    session_headers: Names = ()
    """Headers that name the session, in addition to `X-Session-Id`."""
    scope_headers: Names = ()
    """Headers with an id that a program gives to all its requests, side calls included, in addition to those of Claude Code, Codex and Open
    WebUI. Requests without a session are compared only with the sessions that began with the same id.
    """
    trusted_proxies: Names = ("127.0.0.1", "::1")
    """Addresses, or networks such as `10.0.0.0/8`, of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` name the client's address and
    scheme. Those of others are ignored.
    """
    require_user: bool = False
    """Reject chat requests that name no user, even if they name a session. If false, such requests belong to the user `default`. If they
    name a session, they get that session of `default`, or else the only session with this id, even if it belongs to another user.
    """
    single_user: bool | None = None
    """True if all requests that name no user come from one person. The user `default` is then an identified user. Unset: they do while the
    server listens on loopback, has no keys and accepts no tokens, except for requests that a proxy forwarded (`Forwarded`,
    `X-Forwarded-*`).
    """
    session_mode: Literal["auto", "transcript", "delta"] = "auto"
    """Meaning of the messages of a request that names a session. `transcript`: they are the whole conversation. `delta`: they are new
    messages. `auto`: Holdfast detects which of the two applies.
    """
    pass_fields: Names = ()
    """Names of fields of a chat request that are passed to the provider without a warning."""
    allowed_strategies: Names = FREE_STRATEGIES
    """Strategies that a chat request may name, in addition to the strategy of its agent. Unset: those that call no model."""
    session_queue: Literal["queue", "reject", "interrupt"] = "queue"
    """A request that arrives while a turn of its session is running waits (`queue`), is rejected (`reject`), or ends that turn
    (`interrupt`).
    """
    queue_timeout: Timeout = 300.0
    """Maximum seconds that a request waits for another turn of its session to end, or for another call of a model with `max_requests`."""
    max_tool_rounds: Annotated[int, Meta(ge=0, le=1000)] = 25
    """Maximum number of model calls in a turn that may use server-side tools. The model then answers without these tools. 0: no
    server-side tools run.
    """
    max_tool_result: Size = 64 * 1024
    """Maximum bytes of a tool's result. If a result is longer, the model gets its beginning and its end."""
    tool_timeout: Timeout = 60.0
    """Maximum seconds of a tool call."""
    allowed_hosts: Names = ()
    """Host names under which clients may call this server, in addition to loopback names. Unset: any host name if keys are required,
    otherwise only loopback names. `GET /healthz` and `GET /readyz` are answered under any name.
    """
    cors_origins: Names = ()
    """Origins of web pages that may call the server, for example `https://app.example.com`."""

    def find_mistakes(self) -> list[Mistake]:
        names = {one: getattr(self, one) for one in ("user_headers", "session_headers", "scope_headers")}
        found = [mistake for key, headers in names.items() for mistake in check_header_names(key, headers)]
        found += [
            ("trusted_proxies", f"{one!r:.80} is no address or network")
            for one in self.trusted_proxies
            if not is_network(one)
        ]
        unknown = [name for name in self.allowed_strategies if name not in STRATEGIES]
        known = f"known: {', '.join(STRATEGIES)}"
        return [*found, *(("allowed_strategies", f"unknown strategy {name[:80]!r}; {known}") for name in unknown)]


def explain_users(gateway: Gateway, auth: Auth, *, has_key: bool = False) -> str | None:
    """Return a sentence for a server on loopback that has one user as long as there are no keys; None: the server has several."""
    if gateway.single_user:
        return "requests that name no user are one person's (gateway.single_user)"
    if has_key:
        return None
    if gateway.single_user is None and auth.kind != "always" and auth.jwt is None and gateway.upstream_auth == "server":
        return "while there are no keys, requests that name no user and come through no proxy are one person's"
    return None


class Inspector(Settings, frozen=True, kw_only=True):
    """The web pages of the server, at `/`."""

    enabled: bool = True
    """True: serve the pages. False: the server has only its APIs."""
    hide_content: Annotated[tuple[Role, ...], Meta(extra={"form": "names"})] = ()
    """Roles whose keys see no text of messages, memories, state and artifacts on the pages: any of `read`, `write`, `admin`. The REST API
    does not use this key."""


# -- auth ------------------------------------------------------------------------


class Jwt(Settings, frozen=True, kw_only=True):
    """Settings for JSON Web Tokens (JWT) of another issuer, which the server accepts in addition to API keys."""

    jwks_url: Url
    """URL of the issuer's public keys, or the path of a file with them."""
    issuer: Text
    """Required value of the claim `iss`."""
    audience: Names
    """Accepted audiences. The claim `aud` must contain at least one of them."""
    user_claim: Text = "sub"
    """Claim that contains the user. A token without this claim is rejected."""
    tenant_claim: Text | None = None
    """Claim that contains the tenant. A token without this claim is rejected. Unset: tokens belong to the server's own tenant."""
    role_claim: Text | None = None
    """Claim that contains the role: `read`, `write` or `admin`. A token with another value or a list is rejected. Unset: `role` applies."""
    role: Role = "write"
    """Role of tokens without the claim `role_claim`."""

    @property
    def file(self) -> str | None:
        """Path of the file with the public keys; None: they are at a URL."""
        return None if "://" in self.jwks_url else self.jwks_url

    def find_mistakes(self) -> list[Mistake]:
        found = [("audience", "is empty")] * (not self.audience)
        if self.file is not None:
            return found
        parts = urlsplit(self.jwks_url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            found.append(
                ("jwks_url", "must start with https://, because an attacker could replace the keys in transit")
            )
        return [*check_url("jwks_url", self.jwks_url), *found]


class Auth(Settings, frozen=True, kw_only=True):
    """Authentication and rate limits."""

    required: bool | None = None
    """True if requests need a key or a token. Unset: they do if the store contains a key or `jwt` is set."""
    rate: Count = 0
    """Maximum requests per minute of one key, or of one user of `jwt`. 0: no limit. A key may have its own limit."""
    jwt: Jwt | None = None

    @property
    def kind(self) -> Literal["never", "always", "keys"]:
        """When authentication is required. `keys`: as soon as the store contains a key."""
        if self.required is not None:
            return "always" if self.required else "never"
        return "keys" if self.jwt is None else "always"
