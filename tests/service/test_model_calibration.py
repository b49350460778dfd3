"""What Holdfast learns of models from providers' answers: what is stored, and how much stays in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.agents import Llm
from holdfast.domain.calibration import Learned, decode_learned
from holdfast.engine import model_calibration as module
from holdfast.engine.model_calibration import ModelCalibration
from holdfast.limits import MODELS_LEARNED


class ModelClient:
    """The client of a model, which has only a name."""

    name = "place"


class LearnedTable:
    """The store's table of learned models; writes wait for `free`."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.writing = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def learned(self, key: str) -> bytes | None:
        return self.rows.get(key)

    async def learn(self, key: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        self.writing.set()
        await self.free.wait()
        if self.rows.get(key) != expect:
            return False
        self.rows[key] = data
        return True


def make_calibration(table: LearnedTable) -> ModelCalibration:
    """Create a calibration with a fixed clock."""
    store: Any = table
    return ModelCalibration(store, lambda: 1)


def make_llm(model: str) -> Llm:
    """Create a model with this client."""
    client: Any = ModelClient()
    return Llm(name=model, model=model, client=client)


async def test_reports_during_a_write_are_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not have to wait for another report."""
    monkeypatch.setattr(module, "SAVE_AFTER", 0.0)
    table = LearnedTable()
    known = make_calibration(table)
    table.free.clear()
    known.record_usage(make_llm("m"), 10_000, 11_000)
    await table.writing.wait()
    known.record_usage(make_llm("m"), 10_000, 12_000)
    table.free.set()
    await known.close()
    (row,) = table.rows.values()
    assert sorted(pair.reported for pair in decode_learned(row).calibration.pairs) == [11_000, 12_000]


async def test_unsaved_models_are_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few are kept in memory, all of them are written to the store."""
    monkeypatch.setattr(module, "MODELS_LEARNED", 1)
    table = LearnedTable()
    known = make_calibration(table)
    for number in range(3):
        known.record_usage(make_llm(f"m{number}"), 10_000, 11_000)
    await known.close()
    assert len(table.rows) == 3


async def test_least_recently_used_models_are_evicted() -> None:
    """They stay in the store. Clients can name any number of models."""
    table = LearnedTable()
    known = make_calibration(table)
    for number in range(MODELS_LEARNED + 3):
        assert await known.get(make_llm(f"m{number}")) == Learned()
    assert len(known) == MODELS_LEARNED
    known.record_usage(make_llm("m0"), 10_000, 11_000)
    await known.close()
    for number in range(1, MODELS_LEARNED + 3):
        await known.get(make_llm(f"m{number}"))
    assert len(known) == MODELS_LEARNED
    assert (await known.get(make_llm("m0"))).calibration.pairs
