"""Run the server with a configuration, until it is shut down."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast
from urllib.parse import urlsplit

import anyio.to_thread
import msgspec
import uvicorn
from starlette.applications import Starlette

from holdfast.agents import DEFAULT
from holdfast.config.build import Clients, build_roster, create_holdfast, create_store_folder
from holdfast.config.check import list_missing_keys
from holdfast.config.gateway import Gateway, explain_users
from holdfast.config.loader import load_settings
from holdfast.config.model import Config
from holdfast.config.resolve import resolve_llm
from holdfast.context.strategies import StrategyFunction, forget_strategies, register_strategies
from holdfast.errors import ConfigError
from holdfast.holdfast import Holdfast
from holdfast.hosts import is_loopback
from holdfast.models.client import load_http
from holdfast.sections import mask_url
from holdfast.server.access import Access
from holdfast.server.app import make_app, set_gateway
from holdfast.server.config_reload import ConfigReloader
from holdfast.server.jwks import TokenVerifier
from holdfast.server.logs import configure_logging, set_log_level
from holdfast.server.protocol import make_protocol
from holdfast.stores.sql.address import parse_path
from holdfast.tokens import load_vocabularies
from holdfast.tools.tool import Tool

_SWITCH_SECONDS = 0.001
_MALLOC = ((-8, 2), (-3, 256 * 1024), (-1, 1024 * 1024))
"""Parameters of glibc's `mallopt`, each with a value: M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD. glibc never changes their
numbers."""
_COLLECT_EVERY = (7_000, 5, 2)
"""Thresholds for `gc.set_threshold`.

The youngest generation is collected after 7,000 allocations, the next one after five of these collections, and the oldest one after two of
those.
"""


def serve(
    config: Config,
    *,
    tools: Iterable[Callable[..., Any] | Tool] = (),
    again: Callable[[], Config] | None = None,
) -> int:
    """Run the server until it is stopped, and return the exit code.

    At the start, the server prints its address, the model, the place where data is stored, and a command to try. When it has stopped, it
    prints `stopped` on standard error.

    Args:
        config: configuration from `holdfast.config.loader.load_settings`.
        tools: tools that run in this process; see `Holdfast`.
        again: function that reads the configuration again at SIGHUP; None: SIGHUP ends the process as usual.

    Raises:
        ConfigError: the configuration cannot be served.
        StoreUnavailable: the store cannot be opened.
    """
    _bound_free_memory()
    clients = Clients()
    hf, access = prepare(config, clients=clients, tools=tools)
    configure_logging(sys.stderr, hf.guard, config.gateway.log_level)
    if folder := create_store_folder(config.store):
        print(f"created the folder {folder}", file=sys.stderr, flush=True)  # noqa: T201  # for the user at the terminal
    with asyncio.Runner(loop_factory=_make_loop) as runner:
        try:
            code = runner.run(_run_until_terminated(_serve(hf, access, config, clients, again)))
        except asyncio.CancelledError:  # stopped before it served, or while it closed
            code = 0
    print("stopped", file=sys.stderr, flush=True)  # noqa: T201  # for the user at the terminal
    return code


def prepare(
    config: Config, *, clients: Clients, tools: Iterable[Callable[..., Any] | Tool] = ()
) -> tuple[Holdfast, Access]:
    """Build the objects that `serve` runs. The store is not opened, and no port is used. `config check` calls this to find errors.

    Raises:
        ConfigError: the configuration cannot be served.
        InvalidRequest: a setting is wrong.
        MissingExtra: the configuration needs an extra that is not installed.
    """
    _check_bind(config)
    _check_upstreams(config)
    hf = create_holdfast(config, roster=build_roster(config, clients), tools=tools)
    return hf, create_access(hf, config)


def serve_file(
    file: str | os.PathLike[str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    tools: Iterable[Callable[..., Any] | Tool] = (),
    strategies: Mapping[str, StrategyFunction] | None = None,
) -> int:
    """Run the server as `holdfast serve` does, with tools and strategies of the program.

    Use it as `holdfast.serve("holdfast.yaml", tools=[find_order])`.

    Args:
        file: path of the configuration, which is read again at SIGHUP. None: the file that `holdfast serve` would read, if there is one.
        env: environment variables; None: those of the process.
        tools: tools that run in this process; see `Holdfast`.
        strategies: functions that choose the messages of a working set, by name, which the configuration and requests can use; see
            docs/custom-strategies.md.

    Returns:
        The exit code, when the server has been stopped.

    Raises:
        ConfigError: the configuration has errors or cannot be served.
        StoreUnavailable: the store cannot be opened.
        InvalidRequest: a strategy has a wrong name or is not a function.
    """

    def read() -> Config:
        return load_settings({"config": None if file is None else os.fspath(file)}, os.environ if env is None else env)

    strategies = strategies or {}
    register_strategies(strategies)  # the configuration may use them
    try:
        return serve(read(), tools=tools, again=read)
    finally:
        forget_strategies(strategies)


def _check_bind(config: Config) -> None:
    """Raise `ConfigError` if other machines could connect without a key.

    This is checked before the store is opened. So keys in the store are not considered here.
    """
    auth, store = config.auth, config.store
    if is_loopback(config.gateway.host):
        return
    if auth.required is False:
        raise make_exposed_error(config, "auth.required is false")
    if auth.kind == "keys" and store.startswith("sqlite:") and not Path(parse_path(store)).exists():
        raise make_exposed_error(config, "there are no API keys")


def _check_upstreams(config: Config, *, port: int | None = None) -> None:
    """Raise `ConfigError` if the address of a model is the server's own address.

    Each model call would then reach this server, which would wait for itself. This happens easily: the environment variables that name an
    upstream for the server also name the server for its clients, and one shell may set them for both.

    Args:
        config: the configuration to check.
        port: port on which the server listens; None: the configured port.
    """
    for name in (DEFAULT, *config.llms):
        found = resolve_llm(config, name)
        parts = urlsplit(found.base_url)
        host, its = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if its == (port or config.gateway.port) and (host == config.gateway.host.strip("[]") or is_loopback(host)):
            hint = "unset OPENAI_BASE_URL and ANTHROPIC_BASE_URL here, " if found.origin == "environment" else ""
            where = f"{found.origin}: base_url {mask_url(found.base_url)} is this server itself"
            raise ConfigError([f"{where}: {hint}set the address of the model, or listen on another port"])


def make_exposed_error(config: Config, why: str) -> ConfigError:
    """Return the error for a server that other machines could use without a key. `why` is the reason, for the message."""
    remedy = "Create a key with `holdfast keys create`, configure auth.jwt, or listen on 127.0.0.1"
    return ConfigError(
        [f"host {config.gateway.host!r} is not loopback and {why}: other machines could read every session. {remedy}"]
    )


def create_access(hf: Holdfast, config: Config) -> Access:
    """Create the authentication for a configuration. Raise `MissingExtra` if the configuration uses tokens, and joserfc is not installed."""
    tokens = None if config.auth.jwt is None else TokenVerifier(config.auth.jwt, hf.tenant, hf.clock)
    return Access(hf, config.auth, passthrough=config.gateway.upstream_auth == "passthrough", tokens=tokens)


def _make_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's if uvloop is installed, because it sends events several times faster."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _run_until_terminated(work: Coroutine[Any, Any, int]) -> int:
    """Run `work`. If SIGTERM arrives while uvicorn does not handle signals, cancel `work`, so that it closes what it has opened."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "a coroutine runs in a task"
    if threading.current_thread() is not threading.main_thread():
        return await work
    before = signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(task.cancel))
    try:
        return await work
    finally:
        signal.signal(signal.SIGTERM, before)


async def _serve(
    hf: Holdfast, access: Access, config: Config, clients: Clients, again: Callable[[], Config] | None
) -> int:
    gateway = config.gateway
    listening = _listen(gateway.host, gateway.port)
    port = listening.getsockname()[1]
    async with hf:
        await hf.store.ping()
        await access.begin()
        if not await access.check_requires_key() and not is_loopback(gateway.host):
            raise make_exposed_error(config, "there are no API keys")
        # Loading holds the interpreter lock for tenths of a second. Do it now, or all clients would wait later.
        await anyio.to_thread.run_sync(load_vocabularies)
        if any(llm.model != "offline" for llm in hf.roster.llms.values()):
            await anyio.to_thread.run_sync(load_http)
        app = make_app(hf, gateway, access=access, inspector=config.inspector, close=False)
        has_key = bool(await hf.store.keys(limit=1))
        banner = make_banner(config, hf, port, requires_key=access.requires_key, has_key=has_key)
        server = _Server(_configure_uvicorn(app, gateway), banner)
        reloading = None
        if again is not None:
            check, apply = partial(_check_upstreams, port=port), partial(_apply_gateway, app)
            reloading = ConfigReloader(hf, config, again, clients=clients, check=check, apply=apply)
        with _on_hangup(reloading):
            await server.serve(sockets=[listening])
        if reloading is not None:
            await reloading.close()
        # Cancel turns that outlive the grace period, or a second signal; they save what arrived.
        for task in (unfinished := list(server.server_state.tasks)):
            if not task.cancelling():  # a second cancellation would stop it from notifying its client
                task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    return 0


def _apply_gateway(app: Starlette, gateway: Gateway) -> None:
    set_gateway(app, gateway)
    set_log_level(gateway.log_level)


def _configure_uvicorn(app: Starlette, gateway: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=make_protocol(gateway.send_timeout),
        lifespan="off",
        ws="none",  # the protocol rejects it
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        forwarded_allow_ips=[*gateway.trusted_proxies],
        timeout_graceful_shutdown=max(1, int(gateway.shutdown_grace)),
    )


@contextmanager
def _on_hangup(reloading: ConfigReloader | None) -> Iterator[None]:
    """Reload the configuration at SIGHUP during the block, if the system has this signal."""
    hangup = getattr(signal, "SIGHUP", None)
    if reloading is None or hangup is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(hangup, reloading.ask)
    try:
        yield
    finally:
        loop.remove_signal_handler(hangup)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, greeting: str) -> None:
        super().__init__(config)
        self._greeting = greeting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, then print the greeting. When it is printed, the server already handles signals and requests."""
        _tune_collector()
        await super().startup(sockets=sockets)
        print(self._greeting, flush=True)  # noqa: T201  # the greeting of `serve`

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal to stop. A second signal of any kind ends the grace period; in uvicorn, only SIGINT does."""
        self.force_exit = self.force_exit or self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down. If requests are still running, first print how many, and how long the server waits for them."""
        cast("Starlette", self.config.app).state.inspector.live.close()
        await asyncio.sleep(0)  # streams of events to open pages end now, and are not counted
        running, grace = len(self.server_state.tasks), self.config.timeout_graceful_shutdown
        if running:
            message = (
                f"shutting down: waiting up to {grace} s for {running} requests; send the signal again to stop now"
            )
            print(message, file=sys.stderr, flush=True)  # noqa: T201  # for the user at the terminal
        await super().shutdown(sockets=sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals during the block. Do not raise them again afterwards, as uvicorn does, because the store is still open then."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def _bound_free_memory() -> None:
    """Configure glibc's allocator to return the memory of large requests to the system.

    By default, glibc has up to eight heaps per core. When a block of some megabytes is freed for the first time, glibc begins to allocate
    all smaller blocks on these heaps. There, one small block that is in use keeps all memory below it from being returned. A server that
    had stored texts of 5 MB kept 700 MB. Other allocators do not have this setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for setting in _MALLOC:
            mallopt(*setting)


def _tune_collector() -> None:
    """Exclude all objects that exist now from garbage collection, and collect garbage less often.

    This is only done in the process of the server. The library does not change these settings.

    Every running turn waits for a full collection. If full collections skip the 40,000 objects of imported code, they take half as long
    with 200 concurrent turns, and a fifth as long with 20.

    By default, Python collects young objects after every 700 allocations. With many turns, most young objects belong to running turns, so
    these collections find nothing. Here they are a tenth as frequent. Full collections are as frequent as by default, after every 70,000
    allocations, to free reference cycles of failed turns.

    The collector's part of the CPU time, measured:

    - with 200 turns: 20 % by default, 14 % if loaded objects are excluded, 11 % if there are also fewer collections;
    - with 20 turns: 7 %, 4 %, and below 1 %.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_EVERY)
    # The event loop waits at most this long for a thread that holds the interpreter lock, instead of Python's 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raise `ConfigError` if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only if the protocol is named; otherwise small replies wait 40 ms for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as exc:
        listening.close()
        raise ConfigError([f"cannot listen on {host}:{port}: {exc.strerror or exc}"]) from exc
    return listening


def make_banner(config: Config, hf: Holdfast, port: int, *, requires_key: bool, has_key: bool = True) -> str:
    """Return the text that `serve` prints at the start: address, model, data, access, and a command to try.

    Args:
        config: the configuration of the server.
        hf: the `Holdfast` with the models.
        port: port on which the server listens.
        requires_key: True if every request needs a key or a token.
        has_key: True if the store contains keys.
    """
    host = f"[{config.gateway.host}]" if ":" in config.gateway.host else config.gateway.host
    address = f"http://{host}:{port}"
    llm = hf.roster.find_llm(None)
    where = _explain_offline(config) if llm.model == "offline" else f" at {resolve_llm(config).base_url}"
    key = ' -H "authorization: Bearer $HOLDFAST_KEY"' if requires_key else ""
    access = "a key is required" if requires_key else "this machine only"
    if not has_key and config.auth.jwt is None:
        access += "; create a key with `holdfast keys create`"
    gateway = config.gateway
    users = explain_users(gateway, config.auth, has_key=has_key)
    agents = list(config.agents)  # requests select an agent by its name
    spoken_to = f'"model":{msgspec.json.encode(agents[0]).decode()},' if agents else ""
    spoken_to += '"user":"ada",' if gateway.require_user else ""
    body = f'{{{spoken_to}"session_id":"try-it","messages":[{{"role":"user","content":"What do you see?"}}]}}'
    return "\n".join(
        [
            f"Holdfast listens on {address}",
            f"  model   {llm.model}{where}",
            *(f"  warning {line}" for line in list_missing_keys(config)),
            *([f"  agents  {', '.join(agents)}  (select one with `model`)"] if agents else []),
            f"  data    {mask_url(config.store)}",
            f"  config  {config.file or 'none, defaults'}",
            f"  access  {access}",
            *([f"  users   {users}"] if users else []),
            f"  base    {address}/v1  (any OpenAI client)",
            (
                f"  try     curl {address}/v1/chat/completions"
                f" -H 'content-type: application/json'{key} -d {shlex.quote(body)}"
            ),
        ]
    )


def _explain_offline(config: Config) -> str:
    """Return the reason why the offline model answers: no other model is configured, or the configuration names the offline model."""
    origin = resolve_llm(config).origin
    if config.model:
        return " (built in; chosen with --model)"
    if origin == "built-in":
        return " (built in; set OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY to use a language model)"
    return f" (built in; chosen in {origin})"
