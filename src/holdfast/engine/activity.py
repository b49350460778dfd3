"""Count a tenant's turns, model calls and tokens, and save the counts in the background, so that they can be shown over time.

A turn only adds numbers in memory. Once a minute, and when the engine closes, the sums are added to those in the store. Each process adds
its own, and a compare-and-swap repeats a write that conflicts with another one, so the counts of several processes add up. If the answer of the store
to a write is lost, the write may be repeated, so its counts may be added twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.context.build import WorkingSet
from holdfast.domain.activity import (
    CACHE_LEAST,
    FINE,
    HOURLY,
    RESOLUTIONS,
    ActivityCounts,
    ActivityPoint,
    Resolution,
    Steps,
    add_steps,
    make_series,
    merge_block,
    read_block,
)
from holdfast.domain.session import Session
from holdfast.errors import HoldfastError
from holdfast.limits import ACTIVITY_STEPS
from holdfast.models.collect import TokenUsage
from holdfast.overlays.summarizers import SummaryCost
from holdfast.stores.base import Store

SAVE_AFTER: Final = 60.0
"""Seconds after which new counts are saved."""
_RACES: Final = 16
_log = logging.getLogger("holdfast.activity")


class ActivityLog:
    """The counts of one tenant. The methods `count_…` only add numbers in memory.

    Args:
        store: stores the sums, in which processes that use the same database share.
        clock: returns milliseconds since the epoch.
    """

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._unsaved: dict[Resolution, Steps] = {resolution: {} for resolution in RESOLUTIONS}
        self._current = (-1, ActivityCounts())
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._closed = False

    # -- counting --------------------------------------------------------------

    def count_turn(self, *, begun: bool, failed: bool) -> None:
        """Count a turn that has ended, or a part of it.

        Args:
            begun: False if the request only brought results of tools, so that it continued a turn that is counted already.
            failed: True if the request was not answered.
        """
        counts = self._get_counts()
        counts.turns += begun
        counts.failed_turns += failed

    def count_failed_call(self) -> None:
        """Count a model call that failed."""
        self._get_counts().failed_calls += 1

    def count_further_call(self, usage: TokenUsage) -> None:
        """Count a model call that a program made without a working set, so nothing is known about its prompt."""
        counts = self._get_counts()
        counts.calls += 1
        counts.completion_tokens += usage.completion_tokens

    def count_call(self, session: Session, built: WorkingSet, usage: TokenUsage) -> None:
        """Count an answered model call, and what it would have been with the session's whole log.

        Args:
            session: the session before the reply was appended.
            built: the prompt that was sent.
            usage: the usage that the provider reported.
        """
        counts, sent = self._get_counts(), built.total_tokens
        counts.calls += 1
        counts.completion_tokens += usage.completion_tokens
        counts.sent_tokens += sent
        full, full_cached = _estimate_whole(session, built, usage)
        counts.full_tokens += full
        counts.full_cached_tokens += full_cached
        if usage.prompt_tokens:
            counts.measured_tokens += sent
            counts.cached_tokens += round(sent * min(1.0, usage.cached_tokens / usage.prompt_tokens))

    def count_summary(self, spent: SummaryCost) -> None:
        """Count the tokens that a summary has cost."""
        counts = self._get_counts()
        counts.summary_read_tokens += spent.prompt_tokens
        counts.summary_written_tokens += spent.completion_tokens

    def _get_counts(self) -> ActivityCounts:
        """Return the counts of the current step, and make sure that they are saved later."""
        now = self._clock()
        begin = now - now % FINE.step
        if self._current[0] != begin:
            self._collect()
            self._current = (begin, ActivityCounts())
        self._start_timer()
        return self._current[1]

    def _start_timer(self) -> None:
        """Save the counts later, unless they are already going to be saved. Closing saves those that are left."""
        if self._timer is None and self._saving is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(SAVE_AFTER, self._begin_saving)

    def _collect(self) -> None:
        """Move the counts of the current step to the unsaved ones. If too many are unsaved, the oldest are dropped."""
        begin, counts = self._current
        self._current = (-1, ActivityCounts())
        if begin < 0:
            return
        for resolution, steps in self._unsaved.items():
            add_steps(steps, {begin: counts}, resolution.step)
            while len(steps) > ACTIVITY_STEPS:
                del steps[min(steps)]

    # -- saving ----------------------------------------------------------------

    async def save(self) -> None:
        """Add the unsaved counts to those in the store.

        Raises:
            StoreError: the store could not be read or written. The counts are kept, and saved later.
        """
        self._collect()
        for resolution, steps in self._unsaved.items():
            while steps:
                number = resolution.number_block(min(steps))
                taken = {at: steps.pop(at) for at in tuple(steps) if resolution.number_block(at) == number}
                try:
                    await self._save_block(resolution, number, taken)
                except BaseException:
                    add_steps(steps, taken, resolution.step)
                    raise

    async def _save_block(self, resolution: Resolution, number: int, steps: Steps) -> None:
        name = resolution.name_block(number)
        for _ in range(_RACES):
            stored = await self._store.learned(name)
            data = merge_block(stored, number, steps, resolution.step)
            if data is None or await self._store.learn(name, data, timestamp=self._clock(), expect=stored):
                return
        _log.warning("activity could not be saved because other processes saved theirs; it is lost")

    def _begin_saving(self) -> None:
        self._timer = None
        self._saving = asyncio.create_task(self._try_saving(), name="saving activity")

    async def _try_saving(self) -> None:
        try:
            await self.save()
        except HoldfastError as exc:
            _log.warning("activity could not be saved, and is saved later: %s", exc)
        finally:
            self._saving = None
        if self._current[0] >= 0 or any(self._unsaved.values()):  # counted during the save, or it failed
            self._start_timer()

    async def close(self) -> None:
        """Save the counts that are not saved yet."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._saving is not None:  # it may have begun before the last counts
            await asyncio.wait((self._saving,))
        self._collect()
        if any(self._unsaved.values()):
            await self._try_saving()

    # -- reading ---------------------------------------------------------------

    async def read(self, since: int, until: int, step: int) -> Sequence[ActivityPoint]:
        """Return the counts of a time range, one point per step. Counts of other processes appear once they are saved.

        Args:
            since: start of the range in milliseconds since the epoch. It is rounded down to a whole step.
            until: end of the range, exclusive.
            step: length of a step in milliseconds: a multiple of five minutes. Below an hour, only the last two days are known.

        Raises:
            StoreError: the store could not be read.
        """
        resolution = HOURLY if step % HOURLY.step == 0 else FINE
        self._collect()
        steps: Steps = {}
        add_steps(steps, self._unsaved[resolution], resolution.step)
        now = self._clock()
        first, last = max(since - since % step, now - resolution.kept), min(until - 1, now)
        numbers = range(resolution.number_block(first), resolution.number_block(last) + 1)
        names = [resolution.name_block(number) for number in numbers]
        for number, data in zip(numbers, await asyncio.gather(*map(self._store.learned, names)), strict=True):
            add_steps(steps, read_block(data, number), resolution.step)
        return make_series(steps, since, until, step)


def _estimate_whole(session: Session, built: WorkingSet, usage: TokenUsage) -> tuple[int, int]:
    """Return the tokens of a prompt with the session's whole log, and how many of them the provider would have read from its cache.

    The log only grows, so its prompt begins with that of the call before, as `holdfast replay` assumes too. That call was answered by the
    newest reply in the log, so its prompt ended before this reply. If the prompt lacks this reply, the log up to the prompt's tail is taken.
    """

    def measure(total: int) -> int:
        return built.overhead + round(total * built.request.count.factor)

    full = max(built.total_tokens, measure(session.tail.total))
    # A prompt that began with the previous one and was not cached shows that the provider's cache was cold or is not reported.
    was_cold = not usage.cached_tokens and built.prefix.whole and built.total_tokens >= CACHE_LEAST
    if not session.usage.calls or not usage.prompt_tokens or was_cold:
        return full, 0
    total = 0
    for unit in reversed(built.window.units):
        head = unit.entries[0]
        total = head.total - head.tokens
        if head.message.role == "assistant":
            break
    before = min(full, measure(total))
    return full, before if before >= CACHE_LEAST else 0
