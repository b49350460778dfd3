"""`holdfast.from_config`: the library gets the same settings as `serve`."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import pytest

import holdfast
from holdfast.config.build import BUILDERS
from holdfast.errors import ConfigError, SecretBlocked
from holdfast.holdfast import Holdfast
from holdfast.testing import ScriptedUpstream


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


async def test_holdfast_has_the_configured_settings(here: Path) -> None:
    """Store, expiry, agents, models, limits, redaction and tools. Explicit arguments win."""
    async with ScriptedUpstream(["Hello, Ada."]) as upstream:
        llms = json.dumps({"default": {"model": "m", "base_url": upstream.url, "api_key": "${KEY}"}})
        (here / ".env").write_text("KEY=k\n")
        (here / "own.yaml").write_text(
            f"llms: {llms}\n"
            "agents: {a: {instruction: Be brief., greeting: Hi!}}\n"
            "databases: {main: {driver: sqlite, path: data/deep/chat.db}}\n"
            "short_term: {session_ttl: 90s, max_history_turns: 50}\n"
            "gateway: {max_tool_rounds: 3, session_queue: reject}\n"
            "secret_guard: {on_secret: block}\n"
        )
        async with holdfast.from_config("own.yaml", env={}, tools=[double]) as hf:
            assert (hf.life.session_ttl, hf.life.max_history_turns, hf.queueing.mode) == (90_000, 50, "reject")
            assert (hf.roster.tools.limits.rounds, list(hf.roster.tools.tools)[:1]) == (3, ["double"])
            session = await hf.session("s", user_id="ada", agent="a")
            async with session.turn("Hello!") as turn:
                assert [message["content"] for message in turn.messages] == ["Be brief.", "Hi!", "Hello!"]
                turn.add("Hello, Ada.")
            with pytest.raises(SecretBlocked):
                await session.append({"role": "user", "content": "key AKIAIOSFODNN7EXAMPLQ"})
        assert (here / "data" / "deep" / "chat.db").is_file()


async def test_default_configuration_is_that_of_serve(here: Path) -> None:
    """The file in the current directory, the environment, or the defaults."""
    async with holdfast.from_config(env={}) as hf:
        assert hf.url == "sqlite:///holdfast.db"
    (here / "holdfast.yaml").write_text("storage: {sessions: {backend: inmemory}}\n")
    async with holdfast.from_config(env={"HOLDFAST_SESSIONS__MAX_SESSIONS": "3"}) as hf:
        assert (hf.url, hf.life.max_sessions) == ("sqlite://:memory:", 3)
    async with holdfast.from_config(env={}, url="sqlite:///other.db") as hf:
        assert hf.url == "sqlite:///other.db"


def test_all_configuration_errors_are_reported_together(here: Path) -> None:
    (here / "holdfast.yaml").write_text("gatway: {}\nagents: 5\n")
    with pytest.raises(ConfigError) as caught:
        holdfast.from_config(env={"HOLDFAST_PORT": "x"})
    assert len(caught.value.problems) == 3


def test_every_holdfast_setting_is_configurable_or_listed_as_code_only() -> None:
    """A new setting must be added to one of the two. A configuration brings its roster and life settings as a whole."""
    own = {"url", "tenant", "clock", "new_id", "tools", "summarizers", "scorers", "indexer"}
    own |= {
        "strategies",
        "strategy",
        "budget",
        "session_ttl",
        "retention",
        "max_sessions",
        "max_history_turns",
    }
    assert own.isdisjoint(BUILDERS)
    assert own | BUILDERS.keys() == signature(Holdfast).parameters.keys()
