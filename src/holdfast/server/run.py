"""From a configuration to a listening server, and to its clean end."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import uvicorn

from holdfast.agents import DEFAULT, Agent, Llm, Roster, offline
from holdfast.budget import Budget
from holdfast.config import (
    Config,
    LLMSettings,
    ServerSettings,
    artifacts_of,
    context_of,
    is_loopback,
    life_of,
    mask_url,
    python_of,
    upstream_of,
)
from holdfast.config.gateway import Gateway
from holdfast.config.hooks import hooks_of
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.models import AnthropicModel, Limited, Model, OpenAIModel, ProviderCounter, endpoint_of
from holdfast.models.client import Options
from holdfast.secrets import Guard, guard_of
from holdfast.server.access import Access
from holdfast.server.addressing import Matching
from holdfast.server.app import make_app
from holdfast.server.jwks import Tokens
from holdfast.server.observe import JsonLines
from holdfast.server.protocol import protocol_of
from holdfast.server.relay import Relays
from holdfast.stores.sqlite import MEMORY, path_of
from holdfast.tokens import STORED
from holdfast.tools.tool import Tool, ToolLimits

_COLLECT_EVERY = (7_000, 5, 2)
"""New objects until the collector goes through the young ones, and how many such passes until the middle and all."""
_CACHE_KEY_HOSTS = ("openai.com", "azure.com")
"""Providers that take `prompt_cache_key`; others may refuse a field they do not know."""


def roster_of(config: Config) -> Roster:
    """Agents and models as configured."""
    # An upstream is called by the first of its names: that of its entry.
    names = [*config.llms, DEFAULT, *(agent.llm for agent in config.agents.values() if agent.llm)]
    names += [fallback for llm in config.llms.values() for fallback in llm.fallbacks]
    clients: dict[str, Model] = {}
    llms = {name: _llm(name, upstream_of(config, name), clients) for name in names}
    agents = {}
    for name, agent in config.agents.items():
        settings = context_of(config, name)
        agents[name] = Agent(
            name=name,
            llm=agent.llm,
            instruction=agent.instruction,
            description=agent.description,
            context=settings,
            tools=agent.tools,
            greeting=agent.greeting,
            failure_message=agent.failure_message,
            silence_message=agent.silence_message,
        )
    return Roster(llms, agents, config.context)


def _llm(name: str, settings: LLMSettings, clients: dict[str, Model]) -> Llm:
    """A model under one of its names; all names of an entry share its client, and so its limits."""
    if settings.provider == "offline":
        return offline()
    client = clients.get(settings.origin)
    if client is None:
        client = clients[settings.origin] = _client(settings)
    return Llm(
        name=name,
        model=settings.model,
        client=client,
        context_window=settings.context_window,
        max_tokens=settings.max_tokens,
        dialect="anthropic" if settings.provider == "anthropic" else "openai",
        records=settings.provider == "custom",
        fallbacks=settings.fallbacks,
        inputs=None if settings.inputs is None else frozenset(settings.inputs),
        params={key: value for key, value in settings.params.items() if key != "prompt_cache_key"},
        cache_key=_takes_cache_key(settings),
        count=_counting(settings) if settings.count == "provider" else None,
    )


def _client(settings: LLMSettings) -> Model:
    options: Options = {
        "connect_timeout": settings.timeout.connect,
        "read_timeout": settings.timeout.read,
        "total_timeout": settings.timeout.total,
        "max_connections": settings.max_connections,
    }
    client: Model
    if settings.provider == "anthropic":
        # What the prompt leaves for the reply, where a request does not say: its API wants to know.
        reply = Budget.for_model(settings.model, context_window=settings.context_window).max_reply_tokens
        given = (settings.base_url, settings.api_key)
        client = AnthropicModel(*given, max_tokens=reply, headers=settings.headers, **options)
    else:
        client = OpenAIModel(settings.base_url, settings.api_key, headers=settings.headers, **options)
    if not settings.max_requests:
        return client
    return Limited(client, settings.max_requests, patience=settings.timeout.connect)


def _counting(settings: LLMSettings) -> ProviderCounter:
    endpoint = endpoint_of(settings.base_url, settings.api_key, settings.model, provider=settings.provider)
    return ProviderCounter(endpoint, headers=settings.headers)


def _takes_cache_key(settings: LLMSettings) -> bool:
    """As `params.prompt_cache_key` says (true or false), else by the provider."""
    if settings.provider == "anthropic":
        return False
    said = settings.params.get("prompt_cache_key")
    if isinstance(said, bool):
        return said
    if settings.provider == "custom":  # whoever reads voice records is no provider with a cache
        return False
    host = urlsplit(settings.base_url).hostname or ""
    return is_loopback(host) or any(host == known or host.endswith(f".{known}") for known in _CACHE_KEY_HOSTS)


def tool_limits_of(gateway: Gateway) -> ToolLimits:
    """How far the tools of a turn may go, as configured."""
    return ToolLimits(rounds=gateway.max_tool_rounds, result=gateway.max_tool_result, timeout=gateway.tool_timeout)


def serve(settings: ServerSettings, *, tools: Iterable[Callable[..., Any] | Tool] = ()) -> int:
    """Run the server until it is told to stop; its exit code.

    Prints where it listens, which model answers, where data lies, and one command to try.

    Args:
        settings: see `holdfast.config.settings_from`.
        tools: what the model may call, and runs in this process; see `Holdfast`.

    Raises:
        ConfigError: the configuration cannot be served.
        StoreUnavailable: the store cannot be opened.
    """
    _check_bind(settings)
    _check_upstreams(settings)
    guard = guard_of(settings.config.redaction, settings.config.secret_guard)
    hf = Holdfast(
        settings.store,
        roster=roster_of(settings.config),
        guard=guard,
        artifacts=artifacts_of(settings.config),
        hooks=hooks_of(settings.config.hooks, settings.config.redaction),
        life=life_of(settings.config, sweep=True),
        tools=tools,
        tool_limits=tool_limits_of(settings.config.gateway),
        session_queue=settings.config.gateway.session_queue,
        queue_timeout=settings.config.gateway.queue_timeout,
        python=python_of(settings.config),
    )
    log_to(sys.stderr, guard)
    _make_room(settings.store)
    with asyncio.Runner(loop_factory=_loop) as runner:
        return runner.run(_serve(hf, settings))


def _check_bind(settings: ServerSettings) -> None:
    """Refuse to listen where others may come in without a key, as far as that can be told before anything is opened."""
    auth, store = settings.config.auth, settings.store
    if is_loopback(settings.host):
        return
    if auth.required is False:
        raise exposed(settings, "auth.required is false")
    if auth.kind == "keys" and store.startswith("sqlite:") and not Path(path_of(store)).exists():
        raise exposed(settings, "there are no API keys")


def _check_upstreams(settings: ServerSettings) -> None:
    """Refuse a model whose address is the server's own: each call would come back to it, and wait for itself.

    The variables that name an upstream here are those that name this server to its clients: one shell may have them for both.
    """
    for name in (DEFAULT, *settings.config.llms):
        found = upstream_of(settings.config, name)
        parts = urlsplit(found.base_url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if port == settings.port and (host == settings.host.strip("[]") or is_loopback(host)):
            meant = "unset OPENAI_BASE_URL and ANTHROPIC_BASE_URL here, " if found.origin == "environment" else ""
            where = f"{found.origin}: base_url {mask_url(found.base_url)} is this server itself"
            raise ConfigError([f"{where}: {meant}say where the model is, or listen on another port"])


def exposed(settings: ServerSettings, why: str) -> ConfigError:
    """What is said to whoever would let others in without a key."""
    remedy = "`holdfast keys create` makes a key, auth.jwt takes tokens; or listen on 127.0.0.1"
    return ConfigError(
        [f"host {settings.host!r} is not loopback, and {why}: others could read every session. {remedy}"]
    )


def access_of(hf: Holdfast, config: Config) -> Access:
    """Who may come in, as configured. Raises `MissingExtra`."""
    tokens = None if config.auth.jwt is None else Tokens(config.auth.jwt, hf.tenant, hf.clock)
    return Access(lambda: hf, config.auth, passthrough=config.gateway.upstream_auth == "passthrough", tokens=tokens)


def _make_room(url: str) -> None:
    """The folder of an SQLite file, as seed 002 names one that nobody makes. Raises `StoreUnavailable`."""
    if not url.startswith("sqlite:") or (path := path_of(url)) == MEMORY:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreUnavailable(f"the folder of {path} cannot be made: {exc.strerror or exc}") from exc


def _loop() -> asyncio.AbstractEventLoop:
    """Uvloop where it can be had: it sends several times the events a second."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(hf: Holdfast, settings: ServerSettings) -> int:
    listening = _listen(settings.host, settings.port)
    gateway, access = settings.config.gateway, access_of(hf, settings.config)
    async with hf:
        await hf.store.ping()
        await access.begin()
        if not await access.asking() and not is_loopback(settings.host):
            raise exposed(settings, "there are no API keys")
        # Loading the tokenizer takes a fifth of a second: not the first request's.
        await anyio.to_thread.run_sync(STORED.text, "ready")
        matching = Matching(gateway.match == "on", gateway.match_system)
        app = make_app(
            hf,
            limits=gateway.limits,
            matching=matching,
            access=access,
            hosts=gateway.allowed_hosts,
            origins=gateway.cors_origins,
            relays=Relays(gateway.keep_alive, gateway.on_disconnect),
            close=False,
        )
        config = uvicorn.Config(
            app,
            http=protocol_of(gateway.send_timeout),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=max(1, int(gateway.shutdown_grace)),
        )
        server = _Server(config, banner(settings, hf, listening.getsockname()[1], asks=access.asks))
        await server.serve(sockets=[listening])
        # Turns that the grace did not suffice for, or that a second signal does not wait for, write down what arrived.
        for task in (unfinished := list(server.server_state.tasks)):
            if not task.cancelling():  # a second time would tear it away from telling its client
                task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    return 0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, greeting: str) -> None:
        super().__init__(config)
        self._greeting = greeting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """What is printed is true: signals are handled and requests answered by then."""
        _calm_collector()
        await super().startup(sockets=sockets)
        print(self._greeting, flush=True)  # noqa: T201  # what `serve` says first

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second signal ends the grace, whichever it is; uvicorn's own needs SIGINT for that."""
        self.force_exit = self.force_exit or self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say what is waited for: silence looks like a hang."""
        running, grace = len(self.server_state.tasks), self.config.timeout_graceful_shutdown
        if running:
            told = f"ending: {running} requests running, up to {grace} s; once more to end now"
            print(told, file=sys.stderr, flush=True)  # noqa: T201  # for whoever pressed Ctrl-C
        await super().shutdown(sockets=sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server and nothing else: uvicorn raises them again behind it, before the store is closed."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def _calm_collector() -> None:
    """Take all that is loaded now out of the garbage collector's rounds, and have them come less often.

    The process is the server's own, so its settings are; the library leaves them alone. Full passes, in which every turn
    under way waits, need not go through 40,000 objects of imported code: they take half as long with 200 turns at once, a
    fifth with 20. And with many turns at once the young are mostly those turns, so that Python's pass each 700 objects finds
    nothing and hands them on to the dearer passes. A tenth as many of them bring the collector's share of the processor from
    20 % (14 % with the freezing alone) to 11 % at 200 turns at once, from 7 % (4 %) to below 1 % at 20. Full passes
    stay as frequent as ever, each 70,000 objects: what failed turns leave behind in cycles, prompts among it, has to go.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_EVERY)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, before anything is opened. Raises `ConfigError` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only with its protocol named does asyncio turn Nagle's algorithm off; else each small reply waits 40 ms for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as exc:
        listening.close()
        raise ConfigError([f"cannot listen on {host}:{port}: {exc.strerror or exc}"]) from exc
    return listening


def banner(settings: ServerSettings, hf: Holdfast, port: int, *, asks: bool) -> str:
    """What `serve` prints: address, model, data, who may come in, and one command to try."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{port}"
    llm = hf.roster.llm(None)
    where = "" if llm.model == "offline" else f" at {upstream_of(settings.config).base_url}"
    note = (
        " (built in; set OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY for a real one)"
        if llm.model == "offline"
        else ""
    )
    key = ' -H "authorization: Bearer $HOLDFAST_KEY"' if asks else ""
    body = '{"session_id":"try-it","messages":[{"role":"user","content":"What do you see?"}]}'
    return "\n".join(
        [
            f"Holdfast listens on {address}",
            f"  model   {llm.model}{where}{note}",
            f"  data    {mask_url(settings.store)}",
            f"  config  {settings.file or 'none, defaults'}",
            f"  access  {'whoever has a key' if asks else 'anybody on this machine; `holdfast keys create` makes a key'}",
            f"  base    {address}/v1  (any OpenAI client)",
            "  try     " + f"curl {address}/v1/chat/completions -H 'content-type: application/json'{key} -d '{body}'",
        ]
    )


def log_to(stream: Any, guard: Guard | None = None) -> None:
    """Send Holdfast's and the server's own log to `stream`, as JSON lines; without the secrets that `guard` knows."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(guard))
    for name, level in _LEVELS.items():
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


_LEVELS: Mapping[str, int] = {"holdfast": logging.INFO, "uvicorn": logging.WARNING}
