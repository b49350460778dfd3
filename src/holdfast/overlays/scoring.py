"""Scoring: how much each message matters, by a callable or by a model, worked out behind a turn's back.

The strategy `salience` drops the least important units first. Where its `scorer` names somebody, the messages of a session
are rated here once a turn has closed: in batches, each message once, and what was found is stored with the entry. Nothing
of it is ever waited for: until a message is rated, its own signals count (`holdfast.context.salience`), and a scorer that
fails costs nobody a turn.

What callers said stands: a unit of which any message has an importance is rated already, and nobody is asked about it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.agents import Llm
from holdfast.context.units import Unit, units_of
from holdfast.domain.messages import SYSTEM_ROLES
from holdfast.domain.session import Entry, SessionRef
from holdfast.errors import ModelUnavailable, SessionNotFound
from holdfast.models import TokenUsage
from holdfast.overlays.scorers import BATCH, Nonsense, Scorer, asked_callable, asked_model
from holdfast.stores.base import Store

_log = logging.getLogger("holdfast.scoring")

WORTH_ASKING = 10
"""Messages that wait behind turns until a model is asked about them: one call a turn about two messages would cost more than
it tells. Functions are asked at once."""
BATCHES = 10
"""Batches of one run: what is left is rated after the next turn."""
LOOK_BACK = 400
"""Newest entries of a session that are looked at when this process meets it: of a long import the rest has its signals."""
_READ = 128
AT_ONCE = 4
"""Batches under way at once, of all sessions: turns have to share the model's rate limit with them."""
SECONDS = 120.0
"""After which a scorer that has not answered is given up."""
TRIES = 3
"""Times that a batch is tried before it is left to its signals; each time half as many messages are asked about."""
PAUSE, LONGEST_PAUSE = 2_000, 600_000
"""Milliseconds before the next try, doubled by each failure in a row, and the longest of them."""
REMEMBERED = 10_000
"""Sessions of which it is remembered how far they are rated."""


class Counts(msgspec.Struct):
    """What was done so far."""

    batches: int = 0
    """Asked about, failed ones included."""
    rated: int = 0
    """Entries that got an importance."""
    failed: int = 0
    """Batches without an answer: the scorer raised, was silent for too long, or could not be reached."""
    nonsense: int = 0
    """Batches answered with something that is no answer."""
    given_up: int = 0
    """Batches left to their signals after the last try."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """As models reported them."""


class _Progress(msgspec.Struct):
    """How far a session is rated, as far as this process knows."""

    start: int
    """Nothing before this `seq` is looked at again."""
    tries: int = 0
    """Failures in a row of the batch that begins there."""
    not_before: int = 0
    """Milliseconds since the epoch."""


class Scoring:
    """Rates the messages of sessions, one run a session at a time.

    Args:
        store: where the sessions are.
        resolve: the scorer of that name, a callable or a model; None where there is none: then nothing is rated.
        clock: milliseconds since the epoch.
        told: called with what was found, once it is stored: a view in memory wants to know.
    """

    def __init__(
        self,
        store: Store,
        resolve: Callable[[str], Scorer | Llm | None],
        clock: Callable[[], int],
        told: Callable[[SessionRef, Mapping[int, float]], None] | None = None,
    ) -> None:
        self.counts = Counts()
        self._store = store
        self._resolve = resolve
        self._clock = clock
        self._told = told
        self._progress: OrderedDict[SessionRef, _Progress] = OrderedDict()
        self._paused: dict[str, tuple[int, int]] = {}
        """By scorer that could not be reached: how often in a row, and when it may be asked again."""
        self._running: set[SessionRef] = set()
        self._tasks: dict[SessionRef, asyncio.Task[None]] = {}
        self._again: dict[SessionRef, str] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._closed = False

    # -- in the background -------------------------------------------------

    def soon(self, ref: SessionRef, scorer: str) -> None:
        """Rate what is new in a session, in the background; while a run of it is under way, once more behind that."""
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

    async def settled(self) -> None:
        """Wait for every run under way."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def close(self) -> None:
        """End every run under way: what it has not stored yet is rated another time. Closing twice is fine."""
        self._closed = True
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one run -----------------------------------------------------------

    async def score(self, ref: SessionRef, scorer: str, *, least: int = 1) -> int:
        """Rate what is not rated yet of a session, in a bounded number of batches; how many entries got an importance.

        Nothing is raised: what goes wrong is logged and counted, and tried again by a later run.

        Args:
            ref: the session.
            scorer: its name.
            least: messages below which a model is not asked.
        """
        if ref in self._running:
            return 0
        self._running.add(ref)
        rated = 0
        try:
            for _ in range(BATCHES):
                found = await self._next(ref, scorer, least)
                if found is None:
                    break
                rated += found
        except SessionNotFound:
            self._progress.pop(ref, None)
        except Exception:  # noqa: BLE001 - a store that fails here fails the next turn too, and says so there
            self.counts.failed += 1
            _log.exception("the messages of session %r could not be rated", ref.id)
        finally:
            self._running.discard(ref)
        return rated

    async def _next(self, ref: SessionRef, name: str, least: int) -> int | None:
        """Rate the next batch; how many entries got an importance. None when there is none, or it is too early for it."""
        scorer = self._resolve(name)
        if scorer is None or self._clock() < self._paused.get(name, (0, 0))[1]:
            return None
        progress = await self._known(ref)
        if self._clock() < progress.not_before:
            return None
        batch = await self._unrated(ref, progress)
        if not batch or (isinstance(scorer, Llm) and len(batch) < least and not progress.tries):
            return None
        found = await self._asked(ref, name, scorer, batch)
        if found is None:
            return None
        progress.start, progress.tries, progress.not_before = batch[len(found) - 1].seq + 1, 0, 0
        importances = {entry.seq: value for entry, value in zip(batch, found, strict=False) if value is not None}
        return await self._keep(ref, importances)

    async def _keep(self, ref: SessionRef, importances: Mapping[int, float]) -> int:
        if not importances:
            return 0
        count = await self._store.rate(ref, importances)
        self.counts.rated += count
        if self._told is not None:
            self._told(ref, importances)
        return count

    async def _known(self, ref: SessionRef) -> _Progress:
        progress = self._progress.get(ref)
        if progress is None:
            session = await self._store.get(ref)
            progress = self._progress[ref] = _Progress(max(0, session.tail.next_seq - LOOK_BACK))
        self._progress.move_to_end(ref)
        while len(self._progress) > REMEMBERED:
            self._progress.popitem(last=False)
        return progress

    async def _unrated(self, ref: SessionRef, progress: _Progress) -> list[Entry]:
        """The next messages that nobody rated, whole units; fewer after each failure. What needs no rating is passed."""
        most = max(1, BATCH >> progress.tries)
        while True:
            entries = await self._store.entries(ref, start=progress.start, limit=_READ)
            units = units_of(entries)
            more = len(entries) == _READ
            if units and len(units) > more and (more or not units[-1].answered):
                units.pop()  # it can still change, or was not read to its end
            batch: list[Entry] = []
            for unit in units:
                wanted = _wanted(unit)[:most]
                if wanted and len(batch) + len(wanted) > most:
                    break
                batch += wanted
                progress.start = progress.start if batch else unit.last + 1
            if batch or not more:
                return batch

    async def _asked(
        self, ref: SessionRef, name: str, scorer: Scorer | Llm, batch: Sequence[Entry]
    ) -> list[float | None] | None:
        """What the scorer says of the first messages of a batch, one at least; None where it failed."""
        self.counts.batches += 1
        try:
            async with self._slots, asyncio.timeout(SECONDS):
                if isinstance(scorer, Llm):
                    found = await asked_model(scorer, batch, self._used)
                else:
                    found = await asked_callable(scorer, batch)
        except (ModelUnavailable, TimeoutError) as exc:
            self.counts.failed += 1
            self._pause(name, exc)
        except Nonsense as exc:
            self.counts.nonsense += 1
            self._put_off(ref, name, batch, exc)
        except Exception as exc:  # noqa: BLE001 - whatever a scorer raises is its own affair, and no turn's
            self.counts.failed += 1
            self._put_off(ref, name, batch, exc)
        else:
            self._paused.pop(name, None)
            return found
        return None

    def _used(self, tokens: TokenUsage) -> None:
        self.counts.prompt_tokens += tokens.prompt_tokens
        self.counts.completion_tokens += tokens.completion_tokens

    def _pause(self, name: str, exc: Exception) -> None:
        """The scorer cannot be reached: nobody's messages are sent to it for a while."""
        failures = self._paused.get(name, (0, 0))[0] + 1
        asked = getattr(exc, "retry_after", None)
        pause = max(_pause_after(failures), min(LONGEST_PAUSE, int(1000 * asked)) if asked else 0)
        self._paused[name] = failures, self._clock() + pause
        _log.warning("the scorer %r could not be asked; the next try is in %.1f s: %r", name, pause / 1000, exc)

    def _put_off(self, ref: SessionRef, name: str, batch: Sequence[Entry], exc: Exception) -> None:
        """This batch failed: it is tried again later, smaller, and in the end left to its signals."""
        progress = self._progress[ref]
        progress.tries += 1
        place = f"session {ref.id!r}, messages {batch[0].seq} to {batch[-1].seq}"
        if progress.tries < TRIES:
            progress.not_before = self._clock() + _pause_after(progress.tries)
            _log.warning("the scorer %r failed, %s: %r", name, place, exc)
            return
        self.counts.given_up += 1
        progress.start, progress.tries, progress.not_before = batch[-1].seq + 1, 0, 0
        _log.warning("the scorer %r failed %d times and is not asked again, %s: %r", name, TRIES, place, exc)


def _wanted(unit: Unit) -> list[Entry]:
    """The messages of a unit that somebody is asked about: none where anything said how important the unit is."""
    if any(entry.importance is not None or entry.pinned for entry in unit.entries):
        return []
    return [entry for entry in unit.entries if not entry.erased and entry.message.role not in SYSTEM_ROLES]


def _pause_after(failures: int) -> int:
    return int(min(LONGEST_PAUSE, PAUSE * 2 ** min(failures - 1, 20)))
