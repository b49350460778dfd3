"""What every test may ask for, and what none may have: a key, an address or a setting from outside."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import httpcore2
import pytest
from hypothesis import HealthCheck, settings
from starlette import routing

from holdfast.tokens import Vocabulary
from tests.amounts import THOROUGH

DEFAULT_DATA = Path(__file__).parents[2] / "shared" / "data"
COUNTS, LONG = 8_192, 65_536
"""Texts whose tokens are remembered, and from how many characters none is: megabytes at most, for nearly all texts are short."""
OUTSIDE = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_API_")

# Deadlines fail on a busy machine, and a slow generator is no fault of the code under test.
settings.register_profile(
    "default", max_examples=12, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=5)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=THOROUGH)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()  # until all tests are collected: hardly anything that importing makes is garbage


def pytest_collection_finish() -> None:
    """What collecting left stays until the end, and most of what tests make is gone by itself: a collector that went over all of it time and again took a tenth of a run."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def anyio_backend() -> str:
    """Holdfast runs on asyncio (uvloop included); its drivers know no other."""
    return "asyncio"


@pytest.fixture(autouse=True)
def no_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches a model, or depends on a setting, by accident."""
    for name in list(os.environ):
        if name.startswith(OUTSIDE) and not name.startswith("HOLDFAST_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is reached directly, whatever the environment says."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def time_to_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn waits a moment for what it recalls, and goes on without: on a busy machine that would be any test's result."""
    monkeypatch.setattr("holdfast.turns.recall.RECALL_SECONDS", 60.0)
    for name in ("RECALL_VECTOR_SECONDS", "RECALL_FRESH_SECONDS"):
        monkeypatch.setattr(f"holdfast.turns.recall.{name}", 60.0)


@pytest.fixture(scope="session", autouse=True)
def counted_once() -> Iterator[None]:
    """What a text comes to in tokens does not change, and properties count the same made-up texts a thousand times."""
    count = Vocabulary.count
    known = lru_cache(COUNTS)(count)

    def count_once(vocabulary: Vocabulary, text: str) -> int:
        loaded = vocabulary.is_loaded
        return (known if loaded and len(text) < LONG else count)(vocabulary, text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Vocabulary, "count", count_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def made_once() -> Iterator[None]:
    """All clients share what they would trust, and all servers the patterns of their routes: making both took longer than the rest of starting a server."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        patched.setattr(routing, "compile_path", cache(routing.compile_path))
        yield


@pytest.fixture(scope="session", autouse=True)
def servers_left() -> Iterator[None]:
    """Leave database servers that tests have reached, and the template of servers; a run without any imports neither."""
    yield
    for name in ("tests.stores.servers", "tests.edges.forked_servers"):
        if (used := sys.modules.get(name)) is not None:
            used.leave()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of recorded data: `HOLDFAST_TEST_DATA`, or `../shared/data` beside the repository."""
    folder = Path(os.environ.get("HOLDFAST_TEST_DATA") or DEFAULT_DATA)
    if not folder.is_dir():
        pytest.skip("HOLDFAST_TEST_DATA not found")
    return folder


@pytest.fixture(scope="session")
def recordings_path(test_data: Path) -> Path:
    """The file of the recorded airline sessions."""
    path = test_data / "airline" / "sessions.jsonl"
    if not path.is_file():
        pytest.skip("HOLDFAST_TEST_DATA has no airline/sessions.jsonl")
    return path


@pytest.fixture(scope="session")
def recordings(recordings_path: Path) -> list[dict[str, Any]]:
    """The recorded airline sessions, each `{"id", "messages"}`."""
    with recordings_path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
