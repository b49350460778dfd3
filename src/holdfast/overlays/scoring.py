"""Rate the importance of messages after their turn, with a callable or a language model as the scorer.

If a prompt is too long, the strategy `salience` leaves out the least important messages first. It leaves out *units*: messages
that belong together, such as a tool call and its result. If a `scorer` is configured, it rates the new messages of a session in
batches after each turn. Each message is rated once, and the ratings are stored with the entries. No turn waits for ratings, and
no turn fails because a scorer fails. Until a message is rated, `salience` uses signals in the message's text instead
(`holdfast.context.salience`).

Importances that callers have set take precedence. If a caller has set the importance of a message, the scorer does not rate the
message's unit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.agents import Llm
from holdfast.context.units import Unit, group_units
from holdfast.domain.messages import SYSTEM_ROLES
from holdfast.domain.session import Entry, SessionRef
from holdfast.errors import ModelUnavailable, SessionNotFound
from holdfast.models.collect import TokenUsage
from holdfast.overlays.scorers import BATCH, InvalidRatings, Scorer, rate_by_callable, rate_by_model
from holdfast.stores.base import Store

_log = logging.getLogger("holdfast.scoring")

WORTH_ASKING = 10
"""Minimum number of unrated messages for which a model is called.

A call after each turn about two messages would cost more than it helps. For callables, there is no minimum.
"""
BATCHES = 10
"""Maximum number of batches in one run. The remaining messages are rated after the next turn."""
LOOK_BACK = 400
"""Number of newest entries that are rated when this process sees a session for the first time. Earlier entries, for example of a long import,
are not rated.
"""
_READ = 128
AT_ONCE = 4
"""Maximum number of batches that are rated at once, for all sessions together. The limit is low, because the rate limit of the
model applies to turns too.
"""
SECONDS = 120.0
"""Maximum seconds of one call of a scorer."""
TRIES = 3
"""Number of failed attempts after which a batch is skipped. Each new attempt has half as many messages."""
PAUSE, LONGEST_PAUSE = 2_000, 600_000
"""Milliseconds before the first new attempt, and maximum of this pause. The pause doubles with each consecutive failure."""
PROGRESS_SESSIONS = 10_000
"""Maximum number of sessions whose progress this process remembers."""


class Counts(msgspec.Struct):
    """Number of batches, ratings, failures and tokens since the start of the process."""

    batches: int = 0
    """Number of batches sent to a scorer, including failed ones."""
    rated: int = 0
    """Number of entries that got a rating."""
    failed: int = 0
    """Number of batches without an answer: the scorer raised an error, took too long, or could not be reached."""
    nonsense: int = 0
    """Number of batches with an invalid answer."""
    given_up: int = 0
    """Number of batches that were skipped because all attempts failed."""
    prompt_tokens: int = 0
    """Number of prompt tokens, as reported by models."""
    completion_tokens: int = 0
    """Number of completion tokens, as reported by models."""


class _Progress(msgspec.Struct):
    """The position up to which one session has been rated, as far as this process knows."""

    start: int
    """`seq` of the first entry that may still have to be rated."""
    tries: int = 0
    """Number of consecutive failed attempts at the batch that begins at `start`."""
    not_before: int = 0
    """Earliest time of the next attempt, in milliseconds since the epoch."""


class Scoring:
    """Rates the messages of sessions in the background. At any time, at most one run of a session is in progress.

    Args:
        store: The store of the sessions.
        resolve: Function that returns the scorer with a name: a callable, a model, or None if there is none. Without a scorer,
            nothing is rated.
        clock: Function that returns milliseconds since the epoch.
        on_rated: Function that is called with the ratings after they are stored, to update cached views.
    """

    def __init__(
        self,
        store: Store,
        resolve: Callable[[str], Scorer | Llm | None],
        clock: Callable[[], int],
        on_rated: Callable[[SessionRef, Mapping[int, float]], None] | None = None,
    ) -> None:
        self.counts = Counts()
        self._store = store
        self._resolve = resolve
        self._clock = clock
        self._on_rated = on_rated
        self._progress: OrderedDict[SessionRef, _Progress] = OrderedDict()
        self._paused: dict[str, tuple[int, int]] = {}
        """Scorers that could not be reached, by name: the number of consecutive failures, and the time of the next call in
        milliseconds since the epoch.
        """
        self._running: set[SessionRef] = set()
        self._tasks: dict[SessionRef, asyncio.Task[None]] = {}
        self._again: dict[SessionRef, str] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._closed = False

    # -- in the background -------------------------------------------------

    def schedule(self, ref: SessionRef, scorer: str) -> None:
        """Rate the new messages of a session in the background. If a run of the session is in progress, a second run follows it."""
        if self._closed:
            return
        if ref in self._tasks:
            self._again[ref] = scorer
            return
        self._tasks[ref] = asyncio.create_task(self._run(ref, scorer), name=f"scoring {ref.id}")

    async def _run(self, ref: SessionRef, scorer: str) -> None:
        try:
            await self.score(ref, scorer, least=WORTH_ASKING)
            while (wanted := self._again.pop(ref, None)) is not None:
                await self.score(ref, wanted, least=WORTH_ASKING)
        finally:
            self._again.pop(ref, None)
            self._tasks.pop(ref, None)

    async def wait_until_idle(self) -> None:
        """Wait for all runs to end."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def close(self) -> None:
        """Cancel all runs. Messages without a stored rating are rated later. A second call does nothing."""
        self._closed = True
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one run -----------------------------------------------------------

    async def score(self, ref: SessionRef, scorer: str, *, least: int = 1) -> int:
        """Rate messages of a session in at most `BATCHES` batches. Return the number of entries that got a rating.

        The method raises no errors. Failures are logged and counted, and a later run tries again.

        Args:
            ref: The session.
            scorer: Name of the scorer.
            least: Minimum number of unrated messages for which a model is called.
        """
        if ref in self._running:
            return 0
        self._running.add(ref)
        rated = 0
        try:
            for _ in range(BATCHES):
                found = await self._rate_next(ref, scorer, least)
                if found is None:
                    break
                rated += found
        except SessionNotFound:
            self._progress.pop(ref, None)
        except Exception:  # noqa: BLE001 - a failing store also fails the next turn, which reports it
            self.counts.failed += 1
            _log.exception("rating the messages of session %r failed", ref.id)
        finally:
            self._running.discard(ref)
        return rated

    async def _rate_next(self, ref: SessionRef, name: str, least: int) -> int | None:
        """Rate the next batch, and return the number of entries that got a rating.

        The result is None if nothing was rated: there is no scorer, there are too few messages, a pause is not over, or the
        scorer failed.
        """
        scorer = self._resolve(name)
        if scorer is None or self._clock() < self._paused.get(name, (0, 0))[1]:
            return None
        progress = await self._get_progress(ref)
        if self._clock() < progress.not_before:
            return None
        batch = await self._read_unrated(ref, progress)
        if not batch or (isinstance(scorer, Llm) and len(batch) < least and not progress.tries):
            return None
        found = await self._call_scorer(ref, name, scorer, batch)
        if found is None:
            return None
        progress.start, progress.tries, progress.not_before = batch[len(found) - 1].seq + 1, 0, 0
        importances = {entry.seq: value for entry, value in zip(batch, found, strict=False) if value is not None}
        if not importances:
            return 0
        count = await self._store.rate(ref, importances)
        self.counts.rated += count
        if self._on_rated is not None:
            self._on_rated(ref, importances)
        return count

    async def _get_progress(self, ref: SessionRef) -> _Progress:
        progress = self._progress.get(ref)
        if progress is None:
            session = await self._store.get(ref)
            progress = self._progress[ref] = _Progress(max(0, session.tail.next_seq - LOOK_BACK))
        self._progress.move_to_end(ref)
        while len(self._progress) > PROGRESS_SESSIONS:
            self._progress.popitem(last=False)
        return progress

    async def _read_unrated(self, ref: SessionRef, progress: _Progress) -> list[Entry]:
        """Return the next messages that need a rating, and advance `progress` past messages that need none.

        Messages of a unit stay together. After each failure, half as many messages are returned.
        """
        most = max(1, BATCH >> progress.tries)
        while True:
            entries = await self._store.entries(ref, start=progress.start, limit=_READ)
            units = group_units(entries)
            more = len(entries) == _READ
            if units and len(units) > more and (more or not units[-1].answered):
                units.pop()  # the last unit can still change, or was not read completely
            batch: list[Entry] = []
            for unit in units:
                wanted = _select_entries(unit)[:most]
                if wanted and len(batch) + len(wanted) > most:
                    break
                batch += wanted
                progress.start = progress.start if batch else unit.last + 1
            if batch or not more:
                return batch

    async def _call_scorer(
        self, ref: SessionRef, name: str, scorer: Scorer | Llm, batch: Sequence[Entry]
    ) -> list[float | None] | None:
        """Let the scorer rate the first messages of a batch, at least one, and return the ratings.

        Return None if the scorer failed.

        A failure is counted. If the scorer could not be reached, it is paused for all sessions; otherwise only this batch is
        postponed.
        """
        self.counts.batches += 1
        try:
            async with self._slots, asyncio.timeout(SECONDS):
                if isinstance(scorer, Llm):
                    found = await rate_by_model(scorer, batch, self._count_tokens)
                else:
                    found = await rate_by_callable(scorer, batch)
        except (ModelUnavailable, TimeoutError) as exc:
            self.counts.failed += 1
            self._pause_scorer(name, exc)
        except InvalidRatings as exc:
            self.counts.nonsense += 1
            self._postpone(ref, name, batch, exc)
        except Exception as exc:  # noqa: BLE001 - no error of a scorer may fail a turn
            self.counts.failed += 1
            self._postpone(ref, name, batch, exc)
        else:
            self._paused.pop(name, None)
            return found
        return None

    def _count_tokens(self, tokens: TokenUsage) -> None:
        self.counts.prompt_tokens += tokens.prompt_tokens
        self.counts.completion_tokens += tokens.completion_tokens

    def _pause_scorer(self, name: str, exc: Exception) -> None:
        """Pause a scorer for all sessions, because it could not be reached. The pause grows with each consecutive failure."""
        failures = self._paused.get(name, (0, 0))[0] + 1
        requested_pause = getattr(exc, "retry_after", None)
        pause = max(_compute_pause(failures), min(LONGEST_PAUSE, int(1000 * requested_pause)) if requested_pause else 0)
        self._paused[name] = failures, self._clock() + pause
        _log.warning("the scorer %r could not be reached; retrying in %.1f s: %r", name, pause / 1000, exc)

    def _postpone(self, ref: SessionRef, name: str, batch: Sequence[Entry], exc: Exception) -> None:
        """Postpone a failed batch; the next attempt has fewer messages. After `TRIES` failures, skip the batch."""
        progress = self._progress[ref]
        progress.tries += 1
        place = f"session {ref.id!r}, messages {batch[0].seq} to {batch[-1].seq}"
        if progress.tries < TRIES:
            progress.not_before = self._clock() + _compute_pause(progress.tries)
            _log.warning("the scorer %r failed, %s: %r", name, place, exc)
            return
        self.counts.given_up += 1
        progress.start, progress.tries, progress.not_before = batch[-1].seq + 1, 0, 0
        _log.warning("the scorer %r failed %d times, giving up on %s: %r", name, TRIES, place, exc)


def _select_entries(unit: Unit) -> list[Entry]:
    """Return the messages of a unit that need a rating. If one of them is pinned or has an importance, none needs a rating."""
    if any(entry.importance is not None or entry.pinned for entry in unit.entries):
        return []
    return [entry for entry in unit.entries if not entry.erased and entry.message.role not in SYSTEM_ROLES]


def _compute_pause(failures: int) -> int:
    return int(min(LONGEST_PAUSE, PAUSE * 2 ** min(failures - 1, 20)))
