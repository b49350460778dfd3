"""Every parameter of the library, with a value of each wrong type, raises an error of Holdfast and changes nothing."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.errors import HoldfastError
from holdfast.sessions.handle import SessionHandle


class Other:
    """A value of a type that no parameter has."""


WRONG: tuple[Any, ...] = (
    5,
    1.5,
    float("nan"),
    True,
    "\ud800",
    b"x",
    [None],
    [[]],
    {1: 2},
    {"a": Other()},
    Other(),
    {5},
)
Method = Callable[[holdfast.Holdfast, SessionHandle], Callable[..., Any]]
OWNER = holdfast.Owner("user", "ada")
METHODS: dict[str, tuple[Method, dict[str, Any]]] = {
    "append": (lambda _, s: s.append, {"messages": "x", "expect": 2, "idempotency_key": "k"}),
    "annotate": (lambda _, s: s.annotate, {"seq": 0, "pinned": False, "importance": 0.5, "refused_by": ()}),
    "compact": (lambda _, s: s.compact, {"preview": True, "budget": 100, "summarizer_llm": "x", "prompt": "x"}),
    "context": (lambda _, s: s.context, {"model": "m", "at_turn": 0, "tools": (), "budget": 500}),
    "drop_compaction": (lambda _, s: s.drop_compaction, {"compaction_id": 0}),
    "facts": (lambda _, s: s.facts, {"strategy": "digest", "budget": 500}),
    "facts.pin": (lambda _, s: s.facts.pin, {"fact_id": "0.0"}),
    "facts.drop": (lambda _, s: s.facts.drop, {"fact_id": "0.0"}),
    "fork": (lambda _, s: s.fork, {"at_turn": 0, "id": "f"}),
    "interrupt": (lambda _, s: s.interrupt, {"chars": 1, "ms": 1, "timestamp": 1, "turn_id": 0}),
    "rewind": (lambda _, s: s.rewind, {"at_turn": 0}),
    "send": (lambda _, s: s.send, {"messages": "x", "session_queue": "queue", "interrupt": {}, "strategy": "digest"}),
    "speak": (lambda _, s: s.speak, {"text": "x", "priority": "APPEND", "source": "command"}),
    "update": (lambda _, s: s.update, {"agent": None, "state": {}, "metadata": {}}),
    "state.set": (lambda _, s: s.state.set, {"key": "k", "value": 1}),
    "state.append": (lambda _, s: s.state.append, {"key": "k"}),
    "state.increment": (lambda _, s: s.state.increment, {"key": "k"}),
    "state.compare_and_set": (lambda _, s: s.state.compare_and_set, {"key": "k", "expected": None, "value": 1}),
    "state.delete": (lambda _, s: s.state.delete, {"key": "k"}),
    "artifacts.save": (
        lambda _, s: s.artifacts.save,
        {"name": "a.txt", "data": b"x", "mime_type": "text/plain", "author": "a"},
    ),
    "artifacts.load": (lambda _, s: s.artifacts.load, {"name": "b.txt", "version": 0, "start": 0, "stop": 1}),
    "artifacts.open": (lambda _, s: s.artifacts.open, {"name": "b.txt", "start": 0, "stop": 1}),
    "create": (lambda hf, _: hf.create, {"session_id": "n", "user_id": "u", "agent": None, "metadata": {}}),
    "session": (lambda hf, _: hf.session, {"session_id": "n", "user_id": "u", "agent": None, "carry_over": None}),
    "ensure": (lambda hf, _: hf.ensure, {"session_id": "n", "user_id": "u", "agent": None}),
    "export": (lambda hf, s: hf.export, {"ref": None, "retired": False, "calls": False, "digests": False}),
    "import_": (lambda hf, _: hf.import_, {"data": {"messages": []}, "session_id": "i", "replace": False}),
    "move": (lambda hf, _: hf.move, {"ref": None, "user_id": "u", "agent": None}),
    "prune": (lambda hf, _: hf.prune, {"older_than": 10**13, "status": "closed", "dry_run": True}),
    "delete_user": (lambda hf, _: hf.delete_user, {"user_id": "nobody"}),
    "search": (lambda hf, _: hf.search, {"query": "x", "user_id": "u", "limit": 1, "session_level": False}),
    "serve_tenant": (lambda hf, _: hf.serve_tenant, {"tenant": "t"}),
    "handle": (lambda hf, _: hf.handle, {"session": None}),
    "add_hook": (lambda hf, _: hf.add_hook, {"hook": None}),
    "memories.remember": (
        lambda hf, _: hf.memories.remember,
        {"content": "x", "user_id": "u", "tags": (), "sources": (), "supersedes": (), "metadata": {}},
    ),
    "memories.recall": (lambda hf, _: hf.memories.recall, {"query": "x", "owners": (OWNER,), "now": 1, "limit": 1}),
    "memories.page": (lambda hf, _: hf.memories.page, {"owner": OWNER, "types": (), "tags": (), "after": None}),
    "memories.forget_source": (
        lambda hf, _: hf.memories.forget_source,
        {"user_id": "u", "session_id": "s", "seqs": None},
    ),
}


async def outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> HoldfastError | None:
    """Return the Holdfast error that a call raises; any other error fails the test."""
    try:
        async with asyncio.timeout(10):
            result = call(**arguments)
            if hasattr(result, "__aenter__"):
                async with result:
                    return None
            if inspect.isasyncgen(result):
                _ = [one async for one in result]
            elif inspect.isawaitable(result):
                await result
    except HoldfastError as error:
        return error
    return None


@pytest.mark.parametrize("name", METHODS)
async def test_wrong_types_raise_holdfast_errors(name: str) -> None:
    method, arguments = METHODS[name]
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await recreate_session(hf)
        for parameter, value in itertools.product(arguments, WRONG):
            before = await session.info()
            given = {**arguments, **({"ref": session.ref} if "ref" in arguments else {}), parameter: value}
            error = await outcome(method(hf, session), given)
            after = (await hf.sessions()).sessions
            if error is not None:
                assert after == (before,), f"{parameter}={value!r}: {error}"
                continue
            for stored in after:  # accepted input can be read back
                await hf.export(stored.ref, retired=True, calls=True)
                await hf.handle(stored).verify()
            session = await recreate_session(hf)


async def recreate_session(hf: holdfast.Holdfast) -> SessionHandle:
    """Recreate and return the only session of the store."""
    for stored in (await hf.sessions()).sessions:
        await hf.delete(stored.ref)
    session = await hf.session("s", user_id="ada")
    await session.append([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
    await session.artifacts.save("b.txt", b"hello")
    return session


SETTINGS = (
    *("tenant", "roster", "guard", "artifacts", "life", "hooks", "clock", "new_id", "summarizers", "scorers"),
    *("tools", "tool_limits", "session_queue", "queue_timeout", "python", "index", "mcp_servers", "workspaces"),
    *("memory", "consolidation", "session_ttl", "retention", "max_sessions", "max_history_turns"),
)


@pytest.mark.parametrize("name", SETTINGS)
async def test_settings_of_wrong_types_raise_holdfast_errors(name: str) -> None:
    for value in (None, *WRONG):
        try:
            async with holdfast.open("sqlite://:memory:", **{name: value}) as hf:
                await (await hf.session("s")).send("hi")
        except HoldfastError:
            pass


@pytest.mark.parametrize("value", ["false", 1, None])
async def test_destructive_flags_must_be_true_or_false(value: Any) -> None:
    """A truthy string would replace a session, and a falsy one delete some."""
    async with holdfast.open("sqlite://:memory:") as hf:
        with pytest.raises(HoldfastError, match="replace must be true or false"):
            await hf.import_({"messages": []}, session_id="s", replace=value)
        with pytest.raises(HoldfastError, match="dry_run must be true or false"):
            hf.prune(0, dry_run=value)
