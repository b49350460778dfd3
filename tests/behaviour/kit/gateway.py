"""A gateway in front of a scripted model, with the clients that people use."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx2
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import holdfast
from holdfast.errors import HoldfastError
from holdfast.testing import ScriptedUpstream
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.library import LibraryDriver
from tests.behaviour.kit.rest import RestDriver
from tests.behaviour.kit.seams import (
    Clock,
    count_waiting,
    create_stored_key,
    fresh_store,
    make_failure_reply,
    open_library,
    serve,
    until,
)

UPSTREAM_KEY: Final = "sk-upstream-0123456789abcdef"
CLIENT_KEY: Final = "sk-client-of-the-tests"
OWN: Final = ("session_id", "session_mode", "agent", "temperature", "top_k", "top_p")
"""Fields of the body for which Anthropic's client has no name."""


@dataclass(kw_only=True)
class Served:
    """A running gateway, and its clients. They try nothing again by themselves."""

    url: str
    http: httpx2.AsyncClient
    openai: Any
    """`AsyncOpenAI`. (Its overloads want literal types; tests pass what may be wrong.)"""
    anthropic: Any
    """`AsyncAnthropic`."""
    upstream: Any
    """The scripted model: `upstream.requests[-1].body`. None if the configuration names its own models."""
    models: dict[str, Any]
    """The servers of all models by name: `models["default"]` is `upstream`."""
    store: str
    """URL of the store, for a second server."""
    native: holdfast.Holdfast
    """The `Holdfast` that is served."""
    server: Any
    """What serves it; `count_connections(served.server)`."""
    clock: Clock

    async def until_waiting(self, number: int = 1) -> None:
        """Wait until so many turns wait for another one of their session."""
        await until(lambda: count_waiting(self.native) >= number)

    async def create_key(self, **fields: Any) -> str:
        """Create an API key: `user_id`, `role`, …"""
        return await create_stored_key(self.native, **fields)

    @property
    def sent(self) -> Any:
        """The body of the newest request to the model."""
        return self.upstream.requests[-1].body

    @property
    def rest(self) -> Any:
        """The REST API of the same server."""
        return RestDriver(self.http)

    async def entries(
        self, session_id: str = "s", user: str = "default", *, retired: bool = False
    ) -> list[dict[str, Any]]:
        """Return what is live in the log (or retired, too), without notes."""
        rows = await self.rest.session(session_id, user).messages(retired=retired)
        return [row for row in rows if row["role"] != "note"]

    async def log(self, session_id: str = "s", user: str = "default") -> list[tuple[str, Any]]:
        """Return role and content of what is live in the log."""
        return [(row["role"], row.get("content")) for row in await self.entries(session_id, user)]

    async def ask(self, messages: str | list[Any], *, stream: bool = False, **fields: Any) -> Any:
        """Run a turn through the Messages API with Anthropic's client; return its message. Unknown fields go into the body."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        own = {name: fields.pop(name) for name in OWN if name in fields}
        given = {"model": "default", "max_tokens": 100, "messages": messages, "extra_body": own, **fields}
        if not stream:
            return await self.anthropic.messages.create(**given)
        async with self.anthropic.messages.stream(**given) as events:
            return await events.get_final_message()

    @property
    def claude(self) -> Any:
        """The scripted model with Anthropic's API, of `apis`."""
        return self.models[CLAUDE]

    async def chat(self, said: str | list[dict[str, Any]], session_id: str | None = "s", **fields: Any) -> Any:
        """Run one turn without streaming; return the decoded answer, with its `status` and `headers`."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        headers = fields.pop("headers", {})
        named = {} if session_id is None else {"session_id": session_id}
        answer = await self.http.post(
            "/v1/chat/completions", json={"messages": messages, **named, **fields}, headers=headers
        )
        return {"status": answer.status_code, "headers": answer.headers, **answer.json()}


class InProgram(Served):
    """The library in place of the gateway: `chat` is `SessionHandle.send`, and `rest` is the library's driver. Nothing is served."""

    @property
    def rest(self) -> Any:
        return LibraryDriver(self.native, "library")

    async def chat(self, said: str | list[dict[str, Any]], session_id: str | None = "s", **fields: Any) -> Any:
        """Run one turn; return the completion with the `status` of the gateway's answer, or the error as the gateway writes it."""
        assert not {"headers", "session_mode"} & fields.keys(), "a call of a program has none"
        user, agent = fields.pop("user", "default"), fields.pop("model", None)
        try:
            session = await self.native.session(session_id, user_id=user, agent=agent)
            return {"status": 200, **await session.send(said, **fields)}
        except HoldfastError as exc:
            answer = make_failure_reply(exc)
            return {"status": answer.status, "headers": answer.headers, **answer.body}


__all__ = ["CLAUDE", "CLIENT_KEY", "UPSTREAM_KEY", "InProgram", "Served", "apis", "gateway"]


@asynccontextmanager
async def gateway(
    script: Sequence[Any] | Callable[[dict[str, Any]], Any] | None = (),
    *config: str,
    store: str = "memory",
    upstream: Any = None,
    env: Mapping[str, str] | None = None,
    llm: Mapping[str, Any] | None = None,
    models: Mapping[str, tuple[Any, Mapping[str, Any]]] | None = None,
    driver: str = "rest",
    **settings: Any,
) -> AsyncIterator[Served]:
    """Run a gateway in front of a model that follows a script.

    Args:
        script: replies of the model `default`: texts, or `holdfast.testing.Reply`. None: `config` has `llms` of its own.
        config: lines or blocks of YAML.
        store: `memory`, `file`, `postgres`, `mysql`, or a URL; `""`: the one that `config` names.
        env: environment variables.
        upstream: another server of `holdfast.testing` to use in place of a Chat Completions one, or a function that makes one.
        llm: more fields of the model `default`, for example `provider`.
        models: more models: a server of `holdfast.testing`, or a function that makes one, and the fields of each, by name.
        driver: `library` serves nothing, see `InProgram`.
        settings: settings of `holdfast.open` that a file does not have, for example `tools` or `clock`; `retries` of model calls (0).
    """
    clock = settings.setdefault("clock", Clock())
    running = dict[str, Any](default=None)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if script is not None or upstream is not None:
            served = {"default": (upstream or ScriptedUpstream(script or ()), llm or {}), **(models or {})}
            llms = {}
            for name, (server, fields) in served.items():
                running[name] = await stack.enter_async_context(server() if callable(server) else server)
                llms[name] = model_fields(running[name].url, **fields)
            upstream = running["default"]
            given = "\n".join(config)
            if not (given.startswith("llms:") or "\nllms:" in given):
                config = (f"llms: {json.dumps(llms)}", *config)
        file = folder / "holdfast.yaml"
        file.write_text("\n".join(config) + "\n")
        url = store if not store or "://" in store else stack.enter_context(fresh_store(store, folder))
        native = await stack.enter_async_context(open_library(file, url, env=env, **settings))
        common: Any = {"upstream": upstream, "models": running, "store": url, "native": native, "clock": clock}
        if driver == "library":
            yield InProgram(url="", http=cast("Any", None), openai=None, anthropic=None, server=None, **common)
            return
        address, server = await stack.enter_async_context(serve(native, file, env))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=address, trust_env=False, timeout=60))
        key: dict[str, Any] = {"api_key": CLIENT_KEY, "max_retries": 0, "http_client": http}
        yield Served(
            url=address,
            http=http,
            openai=AsyncOpenAI(base_url=f"{address}/v1", **key),
            anthropic=AsyncAnthropic(base_url=address, **key),
            server=server,
            **common,
        )


def model_fields(url: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a model at this address."""
    # Tests that say nothing else talk to OpenAI, to which every message is sent as it is.
    profile = {} if {"provider", "api"} & more.keys() else {"profile": "openai"}
    return {"model": "gpt-4o", "base_url": url, "api_key": UPSTREAM_KEY, "timeout": "20s", **profile, **more}


CLAUDE: Final = "claude"
"""The name of the model with Anthropic's API."""


def apis(gpt: Any = (), claude: Any = (), *config: str, **settings: Any) -> Any:
    """Run a gateway in front of two models: `default` with OpenAI's API, and `claude` with Anthropic's."""
    llm = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    return gateway(gpt, *config, models={CLAUDE: (AnthropicUpstream(claude), llm)}, **settings)
