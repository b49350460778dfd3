"""Summaries as they are made: between calls, by one process at a time, and never at the cost of a turn.

    after a turn, or inline -> lease -> read -> plan -> write -> lay

Nothing is locked in this process and no transaction is open while a model writes. What holds when the summary is laid is the
store's to judge: what was erased, rewound or taken away in between makes it dead on arrival. Whatever goes wrong leaves the
last good state in place; it is recorded, and tried again later and later.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder, Roster
from holdfast.context.build import Request, WorkingSet
from holdfast.context.settings import ContextSettings, parse
from holdfast.context.strategies import make_strategy
from holdfast.context.window import Window
from holdfast.domain.session import NewCompaction, Session, SessionRef, StoredCompaction, is_child
from holdfast.errors import Conflict, HoldfastError, InvalidRequest, ModelError, SessionNotFound
from holdfast.limits import COMPACTION_ERROR_BYTES
from holdfast.liveness import new_holder
from holdfast.overlays.drafting import Found, Job, Manner, attempt, composed, found, reading
from holdfast.overlays.session_cache import TenantCache
from holdfast.overlays.summarizers import Draft, Spent, Unwritten, write
from holdfast.secrets import Guard
from holdfast.stores.base import Store
from holdfast.stores.lease import acquire_lease
from holdfast.stores.log import Append, SavedView

_log = logging.getLogger("holdfast.compacting")
STRATEGY: Final = "summary_buffer"
_PLANS: Final = 2
"""Times that a summary is made anew because what it was made of does not hold any more."""
_REMEMBERED: Final = 1_000
"""Views of which this process remembers that there is no need to look now."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take, and how long they wait."""

    call: float = 120.0
    """Seconds that a summarizer may take for one answer."""
    inline: float = 20.0
    """Seconds that a turn waits for a summary before the digest takes its place; the summary is finished all the same."""
    lease: int = 60_000
    """Milliseconds after which another process may take over from one that is gone."""
    first_pause: int = 30_000
    """Milliseconds until a failed summary is tried again; doubled for each further failure."""
    longest_pause: int = 3_600_000
    look_again: int = 30_000
    """Milliseconds until a view is looked at again of which nothing is worth a summary now."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a job: `made`, `preview`, `failed`, or why there was nothing to do."""

    word: str
    compaction: StoredCompaction | NewCompaction | None = None


class Compactor:
    """Makes the summaries of all sessions of one tenant, in the background.

    Attributes:
        outcomes: how often a summary was made, or was not, by reason.
        spent: what all of them took.

    Args:
        store: where sessions live.
        clock: milliseconds since the epoch.
        warm: what this process remembers of sessions.
        roster: who can write.
        pace: how long things may take.
        new_id: makes names for the holders of leases.
        guard: what happens to secrets in a summary.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        warm: TenantCache,
        roster: Roster,
        *,
        pace: Pace | None = None,
        new_id: Callable[[], str] = new_holder,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self.outcomes: Counter[str] = Counter()
        self.spent = Spent()
        self.pace = pace or Pace()
        self._store = store
        self._clock = clock
        self._warm = warm
        self._roster = roster
        self._new_id = new_id
        self._tasks: set[asyncio.Task[Outcome]] = set()
        self._running: dict[SessionRef, asyncio.Task[Outcome]] = {}
        self._late: set[asyncio.Task[Outcome]] = set()
        """Those of them that a turn has waited for in vain: no other one does."""
        self._quiet: OrderedDict[tuple[SessionRef, str], int] = OrderedDict()
        self._closed = False

    # -- when --------------------------------------------------------------

    def after_turn(self, ref: SessionRef, responder: Responder, built: WorkingSet, session: Session) -> None:
        """Make a summary in the background if one is due. Reads nothing and costs the same for every session.

        Args:
            ref: the session.
            responder: who answered.
            built: the turn's last working set.
            session: as it was after the turn's last write.
        """
        made = built.request.strategy
        if responder.summarizer is None or made.summarizer is None or self._closed or ref in self._running:
            return
        room = built.request.room(built.budget)
        grown = session.tail.total - built.window.units[-1].entries[-1].total if built.window.units else 0
        if built.window.tokens + math.ceil(max(0, grown) * room.factor) <= int(made.summarize_at * room.tokens):
            return
        job = self._job(ref, responder, built.request, "after")
        if job is not None and not self._is_quiet(job):
            self._start(job)

    async def inline(self, ref: SessionRef, responder: Responder, request: Request) -> bool:
        """Make a summary because the next call would not fit: True when one was laid, and the view is to be built again.

        False after `Pace.inline` seconds at most, and at once when the last attempt has just failed. A summary that is being
        written already is waited for; one that takes too long is finished behind the turn, and not waited for again. Never
        raises.

        Args:
            ref: the session.
            responder: who is about to answer.
            request: what the working set is built for.
        """
        job = self._job(ref, responder, request, "inline")
        if job is None or self._closed:
            return False
        task = self._running.get(ref)
        if task is None:
            if self._is_quiet(job):
                return False
            task = self._start(job)
        if task in self._late:
            return False
        done, _ = await asyncio.wait({task}, timeout=self.pace.inline)
        if not done:
            self._late.add(task)
            self.outcomes["late"] += 1
        return bool(done) and not task.cancelled() and task.result().word == "made"

    async def now(
        self,
        ref: SessionRef,
        responder: Responder,
        request: Request,
        options: Mapping[str, Any] | None = None,
        *,
        preview: bool = False,
    ) -> StoredCompaction | NewCompaction | None:
        """Make a summary because somebody asks, whether or not one is due. It is laid over the view that turns with `responder` use.

        Args:
            ref: the session.
            responder: whose view.
            request: what its working sets are built for.
            options: keys of `summary_buffer` that hold for this one: `budget`, `target`, `summarizer_llm`, `prompt`.
            preview: True stores nothing; what would have been laid is returned.

        Returns:
            What was laid, or the record of the attempt that failed, with `error`; None when there is nothing to compact.

        Raises:
            InvalidRequest: an unknown key, or nobody can write summaries.
            Conflict: another process is at it, or the log changed under every attempt.
            SessionNotFound: no such session.
        """
        job = self._asked(ref, responder, request, options or {}, preview=preview)
        while not preview and (running := self._running.get(ref)) is not None:
            await asyncio.wait({running})
        outcome = await asyncio.shield(self._spawn(job, self._ran(job)))
        if outcome.word in ("busy", "outdated"):
            raise Conflict(_UNDER_WAY if outcome.word == "busy" else _CHANGED)
        return outcome.compaction

    def soon(
        self,
        ref: SessionRef,
        responder: Responder,
        request: Request,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Like `now`, in the background: returns when it is known that somebody can make one. Raises `InvalidRequest`."""
        job = self._asked(ref, responder, request, options or {}, preview=False)
        if ref not in self._running:
            self._start(job)

    async def drop(self, ref: SessionRef, compaction_id: int) -> StoredCompaction:
        """Take a compaction away: its range is verbatim again, or under the one that it had superseded.

        No summary is made by itself of what is verbatim again, until a call could not hold it.

        Raises:
            CompactionNotFound: there is none of that id that is in use.
        """
        dropped = await self._store.drop_compaction(ref, compaction_id, timestamp=self._clock())
        self._warm.forget(ref)
        self.outcomes["dropped"] += 1
        return dropped

    async def told(self, ref: SessionRef, key: str) -> dict[str, Any]:
        """What there is to say of a view's summaries: which one is live, and since when and why none can be made."""
        found = await self._store.compactions(ref, view=key)
        live = next((one.id for one in reversed(found) if one.status == "live"), None)
        failures = _failures(found)
        told: dict[str, Any] = {"live": live, "failed": None}
        if failures:
            last = failures[-1]
            until = last.created_at + self._pause(failures)
            told["failed"] = {"id": last.id, "error": last.error, "attempts": len(failures), "retry_at": until}
        return told

    async def idle(self) -> None:
        """Return when no summary is being made."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Give up what is being written, and its leases: a summary can be made again. Closing twice is fine."""
        self._closed = True
        for task in (tasks := tuple(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- jobs --------------------------------------------------------------

    def _job(self, ref: SessionRef, responder: Responder, request: Request, manner: Manner) -> Job | None:
        if responder.summarizer is None or request.strategy.summarizer is None:
            return None
        return Job(
            ref=ref,
            key=responder.view_key,
            request=request,
            how=request.strategy,
            writer=responder.summarizer,
            manner=manner,
        )

    def _asked(
        self,
        ref: SessionRef,
        responder: Responder,
        request: Request,
        options: Mapping[str, Any],
        *,
        preview: bool,
    ) -> Job:
        if responder.history:
            raise InvalidRequest(_BUFFERED, param="max_history_turns")
        own = responder.context.strategy == STRATEGY
        base = responder.context if own else ContextSettings(STRATEGY)
        settings = parse({"strategy": None, **options}, where="", base=base) if options else base
        if settings.strategy != STRATEGY:
            raise InvalidRequest(f"strategy must be {STRATEGY}: it is the one with summaries", param="strategy")
        how = msgspec.structs.replace(made := make_strategy(settings), facts=made.facts and not is_child(ref))
        writer = self._roster.find_summarizer(how.summarizer, responder.llm)
        if writer is None:
            raise InvalidRequest(_NOBODY, param="summarizer_llm")
        if not own and "budget" not in settings.options:
            how = msgspec.structs.replace(how, budget=responder.strategy.budget)
        return Job(
            ref=ref, key=responder.view_key, request=request, how=how, writer=writer, manner="asked", preview=preview
        )

    def _start(self, job: Job) -> asyncio.Task[Outcome]:
        return self._spawn(job, self._quietly(job))

    def _spawn(self, job: Job, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        """Begin a job: one at a time of a session, but that previews are in nobody's way."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        if not job.preview:
            self._running[job.ref] = task
        task.add_done_callback(lambda done: self._ended(job.ref, done))
        return task

    def _ended(self, ref: SessionRef, task: asyncio.Task[Outcome]) -> None:
        self._tasks.discard(task)
        self._late.discard(task)
        if self._running.get(ref) is task:
            del self._running[ref]
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    async def _quietly(self, job: Job) -> Outcome:
        """A job that nobody waits for: what goes wrong is logged, and looked at again later."""
        try:
            return await self._ran(job)
        except SessionNotFound:
            return Outcome("gone")
        except Exception as exc:  # noqa: BLE001 - the last place: no turn fails for the sake of a summary
            level = logging.WARNING if isinstance(exc, HoldfastError) else logging.ERROR
            _log.log(level, "no summary of session %r could be made", job.ref.id, exc_info=exc)
            self._hush(job, self.pace.first_pause)
            self.outcomes["error"] += 1
            return Outcome("error")

    async def _ran(self, job: Job) -> Outcome:
        if job.preview:
            return await self._made(job)
        try:
            length, name = self.pace.lease, _lease_name(job.ref)
            async with acquire_lease(self._store, name, self._new_id(), self._clock, length=length) as lease:
                if lease is None:
                    return Outcome("busy")
                async with lease.hold():
                    return await self._made(job)
        except TimeoutError:  # the lease could not be kept
            return Outcome("busy")

    # -- making one --------------------------------------------------------

    async def _made(self, job: Job) -> Outcome:
        outcome = Outcome("outdated")
        for _ in range(_PLANS):
            seen = await self._found(job)
            if isinstance(seen, str):
                return Outcome(seen)
            spent = Spent()
            try:
                read = await reading(self._store, job, seen)
                draft = self._kept(job, await write(job.writer, read, spent, seconds=self.pace.call))
            except Unwritten as exc:
                return await self._failed(job, exc, attempt(job, seen, spent, self._clock()), seen)
            finally:
                self._add(spent)
            begun = attempt(job, seen, spent, self._clock())
            if not job.preview:
                # What was said while it was written was answered without it.
                now = await self._store.get(job.ref)
                begun = msgspec.structs.replace(begun, through=max(begun.last, now.tail.last_seq))
            new, view = await run_cpu(composed, job, seen, read, draft, begun)
            if job.preview:
                return Outcome("preview", new)
            outcome = await self._laid(job, new, view, seen)
            if outcome.word == "made":
                return outcome
        return outcome

    def _kept(self, job: Job, draft: Draft) -> Draft:
        """A draft without secrets: its text goes into the view as well, which no store can read."""
        if self._guard is None:
            return draft
        return msgspec.structs.replace(draft, text=self._guard.said(draft.text, "compaction.text", job.ref.id))

    async def _found(self, job: Job) -> Found | str:
        """What is to be summarized, or in a word why nothing is."""
        compactions: Sequence[StoredCompaction] = ()
        if job.manner != "asked":
            compactions = await self._store.compactions(job.ref, view=job.key)
            failures = _failures(compactions)
            until = failures[-1].created_at + self._pause(failures) if failures else 0
            if until > self._clock():
                self._hush(job, until - self._clock())
                return "waiting"
        seen = await found(self._store, job)
        if seen is None:
            self._hush(job, self.pace.look_again)
            return "nothing"
        if job.manner == "after" and _taken_away(compactions, seen.window):
            self._hush(job, self.pace.look_again)
            return "waiting"
        return seen

    async def _laid(self, job: Job, new: NewCompaction, view: SavedView, seen: Found) -> Outcome:
        write_ = Append(
            timestamp=self._clock(), identity=seen.session.identity, compactions=[new], views={job.key: view}
        )
        stored = (await self._store.append(job.ref, write_)).compactions[0]
        word = "made" if stored.status == "live" else "outdated"
        self.outcomes[word] += 1
        if word == "made":
            self._warm.forget(job.ref)
            fields = {"first": stored.first, "last": stored.last, "tokens": stored.tokens, "of": stored.source_tokens}
            _log.info("summarized", extra={"fields": {"session_id": job.ref.id, **fields}})
        return Outcome(word, stored)

    async def _failed(self, job: Job, why: Unwritten, begun: NewCompaction, seen: Found) -> Outcome:
        """Record an attempt: the next one waits longer, in every process."""
        self.outcomes[why.reason] += 1
        _log.warning("no summary of session %r: %s", job.ref.id, why)
        cause = why.__cause__  # clients can read the stored error; the log also has the upstream's address
        public = cause.public_message if isinstance(cause, ModelError) else str(why)
        error = public.encode(errors="replace")[:COMPACTION_ERROR_BYTES].decode(errors="ignore") or why.reason
        report = {"reason": why.reason, **({} if why.pause is None else {"retry_after": why.pause})}
        new = msgspec.structs.replace(begun, error=error, report=report)
        if job.preview:
            return Outcome("failed", new)
        write_ = Append(timestamp=self._clock(), identity=seen.session.identity, compactions=[new])
        appended = await self._store.append(job.ref, write_)
        self._hush(job, self.pace.first_pause)
        return Outcome("failed", appended.compactions[0])

    # -- pauses ------------------------------------------------------------

    def _pause(self, failures: Sequence[StoredCompaction]) -> int:
        """Milliseconds behind the last of some failures until the next attempt: doubling, and at least what was asked for."""
        grown = self.pace.first_pause << min(len(failures) - 1, 20)
        asked = (failures[-1].report or {}).get("retry_after")
        wait = int(asked * 1000) if isinstance(asked, int | float) else 0
        return min(max(grown, wait), self.pace.longest_pause)

    def _is_quiet(self, job: Job) -> bool:
        # A call that would not fit is worth a look when there was nothing worth a summary after the last turn.
        return self._quiet.get((job.ref, job.key), 0) > self._clock() and job.manner != "inline"

    def _hush(self, job: Job, pause: int) -> None:
        self._quiet[job.ref, job.key] = self._clock() + pause
        self._quiet.move_to_end((job.ref, job.key))
        while len(self._quiet) > _REMEMBERED:
            self._quiet.popitem(last=False)

    def _add(self, spent: Spent) -> None:
        self.spent.calls += spent.calls
        self.spent.prompt_tokens += spent.prompt_tokens
        self.spent.completion_tokens += spent.completion_tokens


_BUFFERED: Final = "no summary is made where max_history_turns is set: it would tell what has left the buffer"
_NOBODY: Final = (
    "nobody can write a summary: the model is the built-in one, which reads nothing, and the digest stands in by itself;"
    " name a summarizer_llm"
)
_CHANGED: Final = "the session changed while it was being summarized; try again"
_UNDER_WAY: Final = "the session is being summarized right now; read its compactions in a moment"


def _failures(compactions: Sequence[StoredCompaction]) -> list[StoredCompaction]:
    """The failed attempts since the last one that was laid."""
    failures: list[StoredCompaction] = []
    for one in reversed(compactions):
        if one.status != "failed":
            break
        failures.insert(0, one)
    return failures


def _taken_away(compactions: Sequence[StoredCompaction], window: Window) -> bool:
    """Whether what is verbatim is so because somebody took a summary of it away."""
    dropped = max((one.last for one in compactions if one.status == "dropped"), default=-1)
    return bool(window.units) and window.units[0].first <= dropped


def _lease_name(ref: SessionRef) -> str:
    """Names a session's lease: whatever user and id are, it is short enough for one."""
    return f"summary-{hashlib.blake2b(msgspec.json.encode(ref), digest_size=16).hexdigest()}"
