"""A gateway in front of a scripted model, with the clients that people use."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import holdfast
from holdfast.testing import ScriptedUpstream
from tests.behaviour.kit.rest import RestDriver
from tests.behaviour.kit.seams import Clock, fresh_store, open_library, serve
from tests.behaviour.kit.world import model_config


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
    native: holdfast.Holdfast
    """The `Holdfast` that is served."""
    clock: Clock

    @property
    def rest(self) -> RestDriver:
        """The REST API of the same server."""
        return RestDriver(self.http)

    async def chat(self, said: str | list[dict[str, Any]], session_id: str | None = "s", **fields: Any) -> Any:
        """Run one turn without streaming; return the decoded answer, with its `status` and `headers`."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        headers = fields.pop("headers", {})
        named = {} if session_id is None else {"session_id": session_id}
        answer = await self.http.post(
            "/v1/chat/completions", json={"messages": messages, **named, **fields}, headers=headers
        )
        return {"status": answer.status_code, "headers": answer.headers, **answer.json()}


@asynccontextmanager
async def gateway(
    script: Sequence[Any] | Callable[[dict[str, Any]], Any] | None = (),
    *config: str,
    store: str = "memory",
    upstream: Any = None,
    env: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Run a gateway in front of a model that follows a script.

    Args:
        script: replies of the model `default`: texts, or `holdfast.testing.Reply`. None: `config` has `llms` of its own.
        config: lines or blocks of YAML.
        store: `memory`, `file`, `postgres`, `mysql`, or a URL; `""`: the one that `config` names.
        env: environment variables.
        upstream: another server of `holdfast.testing` to use in place of a Chat Completions one.
        settings: settings of `holdfast.open` that a file does not have, for example `tools` or `clock`; `retries` of model calls (0).
    """
    clock = settings.setdefault("clock", Clock())
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if script is not None or upstream is not None:
            upstream = await stack.enter_async_context(upstream or ScriptedUpstream(script or ()))
            given = "\n".join(config)
            config = (
                config if given.startswith("llms:") or "\nllms:" in given else (model_config(upstream.url), *config)
            )
        file = folder / "holdfast.yaml"
        file.write_text("\n".join(config) + "\n")
        url = store if not store or "://" in store else stack.enter_context(fresh_store(store, folder))
        native = await stack.enter_async_context(open_library(file, url, env=env, **settings))
        address = await stack.enter_async_context(serve(native, file, env))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=address, trust_env=False, timeout=60))
        key: dict[str, Any] = {"api_key": "sk-client-of-the-tests", "max_retries": 0, "http_client": http}
        yield Served(
            url=address,
            http=http,
            openai=AsyncOpenAI(base_url=f"{address}/v1", **key),
            anthropic=AsyncAnthropic(base_url=address, **key),
            upstream=upstream,
            native=native,
            clock=clock,
        )
