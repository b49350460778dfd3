"""From a configuration to a listening server, and to its clean end."""

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
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import msgspec
import uvicorn

from holdfast.agents import DEFAULT
from holdfast.config import Config, ServerSettings, load_settings, resolve_llm
from holdfast.config.build import Clients, build_roster, create_holdfast, create_store_folder
from holdfast.config.gateway import is_loopback
from holdfast.errors import ConfigError
from holdfast.holdfast import Holdfast
from holdfast.models.client import load_http
from holdfast.server.access import Access
from holdfast.server.app import make_app
from holdfast.server.intake import Intake
from holdfast.server.jwks import Tokens
from holdfast.server.logs import log_level, log_to
from holdfast.server.protocol import protocol_of
from holdfast.server.relay import Relays
from holdfast.server.reloading import Dials, Reloading
from holdfast.server.requester import RequestRules
from holdfast.server.session_locator import Matching
from holdfast.settings import mask_url
from holdfast.stores.sql.address import path_of
from holdfast.tokens import load_vocabularies
from holdfast.tools.tool import Tool

_SWITCH_SECONDS = 0.001
_MALLOC = ((-8, 2), (-3, 256 * 1024), (-1, 1024 * 1024))
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's mallopt, whose numbers its interface fixes."""
_COLLECT_EVERY = (7_000, 5, 2)
"""New objects until the collector goes through the young ones, and how many such passes until the middle and all."""


def serve(
    settings: ServerSettings,
    *,
    tools: Iterable[Callable[..., Any] | Tool] = (),
    again: Callable[[], ServerSettings] | None = None,
) -> int:
    """Run the server until it is told to stop; its exit code.

    Prints where it listens, which model answers, where data lies, and one command to try.

    Args:
        settings: see `holdfast.config.load_settings`.
        tools: what the model may call, and runs in this process; see `Holdfast`.
        again: reads the settings anew when SIGHUP asks for it; None: such a signal ends the process, as usual.

    Raises:
        ConfigError: the configuration cannot be served.
        StoreUnavailable: the store cannot be opened.
    """
    _bound_free_memory()
    clients = Clients()
    hf, access = prepare(settings, clients=clients, tools=tools)
    log_to(sys.stderr, hf.guard, settings.config.gateway.log_level)
    create_store_folder(settings.store)
    with asyncio.Runner(loop_factory=_loop) as runner:
        try:
            return runner.run(_terminable(_serve(hf, access, settings, clients, again)))
        except asyncio.CancelledError:  # told to end before it served, or while it closed
            return 0


def prepare(
    settings: ServerSettings, *, clients: Clients, tools: Iterable[Callable[..., Any] | Tool] = ()
) -> tuple[Holdfast, Access]:
    """Build what `serve` runs, without opening or listening: `config check` refuses what this refuses.

    Raises:
        ConfigError: the configuration cannot be served.
        InvalidRequest: a setting is wrong.
        MissingExtra: it needs an extra that is not installed.
    """
    _check_bind(settings)
    _check_upstreams(settings)
    hf = create_holdfast(settings, roster=build_roster(settings.config, clients), tools=tools)
    return hf, access_of(hf, settings.config)


def serve_file(
    file: str | os.PathLike[str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    tools: Iterable[Callable[..., Any] | Tool] = (),
) -> int:
    """Run the server as `holdfast serve` does, with tools of a program's own: `holdfast.serve("holdfast.yaml", tools=[find_order])`.

    Args:
        file: the configuration, read again at SIGHUP; None: the one that `holdfast serve` would read, or none.
        env: the environment; None: the process's own.
        tools: what the model may call, and runs in this process; see `Holdfast`.

    Returns:
        The exit code, when it was told to stop.

    Raises:
        ConfigError: the configuration has mistakes, or cannot be served.
        StoreUnavailable: the store cannot be opened.
    """

    def read() -> ServerSettings:
        return load_settings({"config": None if file is None else os.fspath(file)}, os.environ if env is None else env)

    return serve(read(), tools=tools, again=read)


def _check_bind(settings: ServerSettings) -> None:
    """Refuse to listen where others may come in without a key, as far as that can be told before anything is opened."""
    auth, store = settings.config.auth, settings.store
    if is_loopback(settings.host):
        return
    if auth.required is False:
        raise exposed(settings, "auth.required is false")
    if auth.kind == "keys" and store.startswith("sqlite:") and not Path(path_of(store)).exists():
        raise exposed(settings, "there are no API keys")


def _check_upstreams(settings: ServerSettings, *, port: int | None = None) -> None:
    """Refuse a model whose address is the server's own: each call would come back to it, and wait for itself.

    `port` is where it listens, once that is known; None: where it is to listen.

    The variables that name an upstream here are those that name this server to its clients: one shell may have them for both.
    """
    for name in (DEFAULT, *settings.config.llms):
        found = resolve_llm(settings.config, name)
        parts = urlsplit(found.base_url)
        host, its = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if its == (port or settings.port) and (host == settings.host.strip("[]") or is_loopback(host)):
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
    return Access(hf, config.auth, passthrough=config.gateway.upstream_auth == "passthrough", tokens=tokens)


def _loop() -> asyncio.AbstractEventLoop:
    """Uvloop where it can be had: it sends several times the events a second."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _terminable(work: Coroutine[Any, Any, int]) -> int:
    """Do `work`; where SIGTERM comes while no server takes signals, what it has opened by then is closed."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "a coroutine runs in one"
    if threading.current_thread() is not threading.main_thread():
        return await work
    before = signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(task.cancel))
    try:
        return await work
    finally:
        signal.signal(signal.SIGTERM, before)


async def _serve(
    hf: Holdfast, access: Access, settings: ServerSettings, clients: Clients, again: Callable[[], ServerSettings] | None
) -> int:
    listening = _listen(settings.host, settings.port)
    gateway = settings.config.gateway
    async with hf:
        await hf.store.ping()
        await access.begin()
        if not await access.asking() and not is_loopback(settings.host):
            raise exposed(settings, "there are no API keys")
        # Loading them holds the interpreter's lock for tenths of a second: every client would wait, not only the one that needs them.
        await anyio.to_thread.run_sync(load_vocabularies)
        if any(llm.model != "offline" for llm in hf.roster.llms.values()):
            await anyio.to_thread.run_sync(load_http)
        intake, relays = Intake(gateway.limits), Relays(gateway.keep_alive, gateway.on_disconnect)
        matching = Matching(gateway.match == "on", gateway.match_system)
        rules = RequestRules.from_gateway(gateway)
        app = make_app(
            hf,
            limits=intake,
            matching=matching,
            access=access,
            hosts=gateway.allowed_hosts,
            origins=gateway.cors_origins,
            relays=relays,
            rules=rules,
            close=False,
        )
        config = uvicorn.Config(
            app,
            http=protocol_of(gateway.send_timeout),
            lifespan="off",
            ws="none",  # refused by the protocol
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=max(1, int(gateway.shutdown_grace)),
        )
        server = _Server(config, banner(settings, hf, listening.getsockname()[1], asks=access.asks))
        reloading = None
        if again is not None:
            reloading = Reloading(
                hf,
                settings,
                again,
                clients=clients,
                check=partial(_check_upstreams, port=listening.getsockname()[1]),
                dials=Dials(intake, relays, matching, rules, log_level),
            )
        with _on_hangup(reloading):
            await server.serve(sockets=[listening])
        if reloading is not None:
            await reloading.close()
        # Turns that the grace did not suffice for, or that a second signal does not wait for, write down what arrived.
        for task in (unfinished := list(server.server_state.tasks)):
            if not task.cancelling():  # a second time would tear it away from telling its client
                task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    return 0


@contextmanager
def _on_hangup(reloading: Reloading | None) -> Iterator[None]:
    """Read the configuration again at SIGHUP, where there is such a signal."""
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


def _bound_free_memory() -> None:
    """Have glibc return what large requests used to the system, instead of keeping it for later ones.

    By itself it keeps a heap for each of up to eight threads a core, and after the first freed block of some megabytes it serves
    all smaller ones from these heaps, where a small block that is still used keeps everything below it: a server that had stored
    texts of 5 MB kept 700 MB. Other systems' allocators have no such call, and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for setting in _MALLOC:
            mallopt(*setting)


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
    # The event loop waits at most this long for a thread that analyses or counts, instead of Python's 5 ms, each time.
    sys.setswitchinterval(_SWITCH_SECONDS)


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
    where = _built_in(settings.config) if llm.model == "offline" else f" at {resolve_llm(settings.config).base_url}"
    key = ' -H "authorization: Bearer $HOLDFAST_KEY"' if asks else ""
    agents = list(settings.config.agents)  # without the name of one, none of them is asked
    spoken_to = f'"model":{msgspec.json.encode(agents[0]).decode()},' if agents else ""
    body = f'{{{spoken_to}"session_id":"try-it","messages":[{{"role":"user","content":"What do you see?"}}]}}'
    return "\n".join(
        [
            f"Holdfast listens on {address}",
            f"  model   {llm.model}{where}",
            *([f"  agents  {', '.join(agents)}  (asked by their names, as `model`)"] if agents else []),
            f"  data    {mask_url(settings.store)}",
            f"  config  {settings.file or 'none, defaults'}",
            f"  access  {'whoever has a key' if asks else 'anybody on this machine; `holdfast keys create` makes a key'}",
            f"  base    {address}/v1  (any OpenAI client)",
            (
                f"  try     curl {address}/v1/chat/completions"
                f" -H 'content-type: application/json'{key} -d {shlex.quote(body)}"
            ),
        ]
    )


def _built_in(config: Config) -> str:
    """Why the offline model answers: nothing names another one, or somebody wanted it, and then no variable changes that."""
    origin = resolve_llm(config).origin
    if config.model:
        return " (built in; --model names it)"
    if origin == "built-in":
        return " (built in; set OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY for a real one)"
    return f" (built in; {origin} names it)"
