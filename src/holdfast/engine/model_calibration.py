"""Calibrate token counts and context windows of models, using the counts and errors that their providers report.

The calibration is cached in memory, and shared through the store. A turn uses the calibration that is known when it begins.
Corrections during a turn are available at once to the next turn in this process, and soon to other processes. No turn waits for
the write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from holdfast.agents import Llm
from holdfast.domain.budget import Budget
from holdfast.domain.calibration import HIGH, Learned, decode_learned, encode_learned
from holdfast.errors import ContextTooLong, HoldfastError
from holdfast.limits import MODELS_LEARNED
from holdfast.models.offline import OfflineModel
from holdfast.stores.base import Store

SAVE_AFTER = 5.0
"""Seconds after which new calibration data is saved. It is saved at once after a provider refused a prompt as too long."""
FRESH = 60_000
"""Milliseconds for which calibration data read from the store counts as current."""
AGREE = 0.01
"""Maximum relative difference between the provider's count and the expected count with which they agree. After `ENOUGH` samples,
a count that agrees is ignored.
"""
ENOUGH = 8
_RACES = 8
_log = logging.getLogger("holdfast.learning")


class _Known(NamedTuple):
    """Cached calibration of a model."""

    learned: Learned = Learned()
    read_at: int | None = None
    """Time of the last read from the store, in milliseconds since the epoch; None: never read."""


_NOTHING: Final = Learned()


class ModelCalibration:
    """The calibration of all models that the process uses with one store.

    Args:
        store: stores the calibration, so that other processes share it.
        clock: returns milliseconds since the epoch.
    """

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._saving: dict[str, asyncio.Task[None]] = {}
        self._hurry = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, llm: Llm) -> Learned:
        """Return the calibration of a model. Never fails.

        The calibration is read from the store if the last read was more than `FRESH` milliseconds ago.
        """
        if isinstance(llm.client, OfflineModel):
            return _NOTHING
        key = make_key(llm)
        now, known = self._clock(), self._get(key)
        if known.read_at is None or now - known.read_at >= FRESH:
            self._put(key, known._replace(read_at=now))
            await self._refresh(key)
        return self._get(key).learned

    def record_usage(self, llm: Llm, counted: int, reported: int) -> Learned:
        """Improve the calibration with the token count of an answer, and return the new calibration.

        Args:
            llm: the model that answered.
            counted: tokens of the prompt as counted when it was built.
            reported: tokens of the prompt as the provider reported them.
        """
        known = self._get(make_key(llm)).learned
        if isinstance(llm.client, OfflineModel) or not counted:
            return known
        measure = llm.measure(known)
        expected = counted * measure.ratio
        settled = known.window is None and known.ceiling is None and measure.samples >= ENOUGH
        if settled and abs(reported - expected) <= AGREE * expected:
            return known
        return self._learn(llm, known.record_usage(counted, reported, at=self._clock()))

    def record_refusal(self, llm: Llm, counted: int, budget: Budget, refusal: ContextTooLong) -> Learned:
        """Improve the calibration after a prompt was refused as too long, and return the new calibration.

        Args:
            llm: the model that refused the prompt.
            counted: tokens of the prompt as counted when it was built.
            budget: the budget for which the prompt was built.
            refusal: the error.
        """
        known = self._get(make_key(llm)).learned
        limit, requested, at = refusal.context_limit, refusal.requested, self._clock()
        learned = self._learn(llm, known.record_refusal(counted, budget, limit=limit, requested=requested, at=at))
        self._hurry.set()
        return learned

    async def close(self) -> None:
        """Save the calibration data that is not saved yet."""
        self._closed = True
        self._hurry.set()
        while self._saving:
            await asyncio.wait(tuple(self._saving.values()))

    def _get(self, key: str) -> _Known:
        return self._known.get(key, _Known())

    def _put(self, key: str, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > MODELS_LEARNED:
            # Unsaved entries and the new one are never evicted, so the limit can be exceeded for a moment.
            idle = (one for one in self._known if one not in self._saving and one != key)
            if (oldest := next(idle, None)) is not None:
                del self._known[oldest]

    def _learn(self, llm: Llm, learned: Learned) -> Learned:
        key = make_key(llm)
        known = self._get(key)
        if learned != known.learned:
            self._warn_of_ratio(llm, known.learned, learned)
            self._put(key, known._replace(learned=learned))
            if key not in self._saving:
                self._saving[key] = asyncio.create_task(self._save_soon(key))
        return learned

    def _warn_of_ratio(self, llm: Llm, before: Learned, after: Learned) -> None:
        """Log a warning when it becomes clear that a provider counts far more tokens than Holdfast."""
        ratio = llm.measure(after).ratio
        if ratio > HIGH >= llm.measure(before).ratio:
            text = "the provider of model %r reports %.1f times the tokens counted here; its prompts are built smaller"
            _log.warning(text, llm.model, ratio)

    async def _save_soon(self, key: str) -> None:
        try:
            saved = False
            while not saved:
                if not self._closed:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), SAVE_AFTER)
                self._hurry.clear()
                saved = await self._save(key)
        except HoldfastError as exc:
            _log.warning("the calibration of model %r could not be saved: %s", key, exc)
        finally:
            del self._saving[key]

    async def _save(self, key: str) -> bool:
        """Save the calibration of a model. Return False if the calibration has changed meanwhile."""
        for _ in range(_RACES):
            known = self._known[key].learned
            stored = await self._store.learned(key)
            learned = known if stored is None else known.merge(decode_learned(stored))
            data = encode_learned(learned)
            if data == stored or await self._store.learn(key, data, timestamp=self._clock(), expect=stored):
                more = self._known[key].learned != known
                self._merge(key, learned)
                return not more
        return True

    async def _refresh(self, key: str) -> None:
        try:
            stored = await self._store.learned(key)
        except HoldfastError as exc:
            _log.warning("the calibration of model %r could not be read: %s", key, exc)
            return
        if stored is not None:
            self._merge(key, decode_learned(stored))

    def _merge(self, key: str, learned: Learned) -> None:
        known = self._get(key)
        self._put(key, known._replace(learned=known.learned.merge(learned)))


def make_key(llm: Llm) -> str:
    """Return a key for a model at its endpoint.

    The endpoint is part of the key, because a model with the same name at another endpoint may have another context window.
    """
    return f"{llm.model}@{llm.client.name}"
