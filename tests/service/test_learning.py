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


class Place:
    """Where a model is called."""

    name = "place"


class Table:
    """What a store keeps of models; a write waits until it may go on."""

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


def made(table: Table) -> ModelCalibration:
    """What a process knows, its clock at one moment."""
    store: Any = table
    return ModelCalibration(store, lambda: 1)


def llm(model: str) -> Llm:
    """A model that is called at `Place`."""
    client: Any = Place()
    return Llm(name=model, model=model, client=client)


async def test_what_is_learned_while_it_is_written_down_is_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports that come in the midst of a write are not left for the next one to take with it."""
    monkeypatch.setattr(module, "SAVE_AFTER", 0.0)
    table = Table()
    known = made(table)
    table.free.clear()
    known.record_usage(llm("m"), 10_000, 11_000)
    await table.writing.wait()
    known.record_usage(llm("m"), 10_000, 12_000)
    table.free.set()
    await known.close()
    (row,) = table.rows.values()
    assert sorted(pair.reported for pair in decode_learned(row).calibration.pairs) == [11_000, 12_000]


async def test_what_is_yet_to_be_written_down_is_not_forgotten_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few are remembered: each of them is in the store in the end."""
    monkeypatch.setattr(module, "MODELS_LEARNED", 1)
    table = Table()
    known = made(table)
    for number in range(3):
        known.record_usage(llm(f"m{number}"), 10_000, 11_000)
    await known.close()
    assert len(table.rows) == 3


async def test_models_that_anybody_may_name_are_not_remembered_for_ever() -> None:
    """The one that was asked longest ago is forgotten here; the store still knows it."""
    table = Table()
    known = made(table)
    for number in range(MODELS_LEARNED + 3):
        assert await known.get(llm(f"m{number}")) == Learned()
    assert len(known) == MODELS_LEARNED
    known.record_usage(llm("m0"), 10_000, 11_000)
    await known.close()
    for number in range(1, MODELS_LEARNED + 3):
        await known.get(llm(f"m{number}"))
    assert len(known) == MODELS_LEARNED
    assert (await known.get(llm("m0"))).calibration.pairs
