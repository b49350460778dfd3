"""Decide when a session is summarized, and make the summary in the background. If a summary fails, the turn continues.

    after a turn, or before a call that would not fit -> lease -> read -> plan -> write -> store

For each session, only one process at a time makes a summary; a lease in the store ensures that. While a model writes, nothing is
locked in this process, and no transaction is open. When the summary is written, the store decides whether the summary is still
valid. If one of its messages was erased, rewound or restored in the meantime, the summary is stored but not used. After a
failure, the previous summary remains in use. The failure is recorded, and the summary is tried again after pauses that become
longer.
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

from holdfast import faults
from holdfast.accounting import run_cpu
from holdfast.agents import Responder, Roster
from holdfast.context.build import Request, WorkingSet
from holdfast.context.settings import ContextSettings, parse
from holdfast.context.strategies import make_strategy
from holdfast.context.window import Window
from holdfast.domain.session import NewCompaction, Session, SessionRef, StoredCompaction, is_child
from holdfast.errors import Conflict, HoldfastError, InvalidRequest, ModelError, SessionNotFound
from holdfast.limits import COMPACTION_ERROR_BYTES
from holdfast.liveness import make_holder
from holdfast.overlays.session_cache import TenantCache
from holdfast.overlays.summarizers import Draft, SummaryCost, SummaryError, Writer, write_summary
from holdfast.overlays.summary_draft import Job, Source, Trigger, compose, find_source, make_attempt, read_source
from holdfast.secrets.guard import Guard
from holdfast.stores.base import Store
from holdfast.stores.lease import acquire_lease
from holdfast.stores.log import Append, SavedView

_log = logging.getLogger("holdfast.compacting")
STRATEGY: Final = "summary_buffer"
_PLANS: Final = 2
"""Maximum number of attempts at a summary if its messages change each time while it is written."""
_CHECK_VIEWS: Final = 1_000
"""Maximum number of views for which this process remembers when to check again if a summary is due."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of summaries, and pauses between attempts."""

    call: float = 120.0
    """Maximum seconds that a summarizer may take for one answer."""
    inline: float = 20.0
    """Maximum seconds that a turn waits for a summary. After that, the turn uses the digest instead, and the summary is finished later."""
    lease: int = 60_000
    """Milliseconds after which another process may make the summary instead of a process that died."""
    first_pause: int = 30_000
    """Milliseconds until a failed summary is tried again. The pause doubles after each consecutive failure."""
    longest_pause: int = 3_600_000
    look_again: int = 30_000
    """Milliseconds until a view that needed no summary is checked again."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a summary job. `word` is `made`, `preview`, `failed`, or the reason why no summary was stored."""

    word: str
    compaction: StoredCompaction | NewCompaction | None = None


class Compactor:
    """Makes the summaries of all sessions of one tenant.

    Attributes:
        outcomes: Number of jobs by outcome, for example `made`, `outdated` or the reason of a failure.
        spent: Total calls and tokens of all summaries.
        on_spent: Function that is called with the calls and tokens of each summary; None: no function.

    Args:
        store: The store of the sessions.
        clock: Function that returns milliseconds since the epoch.
        warm: The tenant's cache of sessions and views.
        roster: The agents and models, among which summarizers are looked up.
        pace: Time limits and pauses. None: the defaults.
        new_id: Function that creates the name under which this process holds a lease.
        guard: Guard that redacts or rejects secrets in summaries. None: summaries are not checked for secrets.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        warm: TenantCache,
        roster: Roster,
        *,
        pace: Pace | None = None,
        new_id: Callable[[], str] = make_holder,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self.outcomes: Counter[str] = Counter()
        self.spent = SummaryCost()
        self.on_spent: Callable[[SummaryCost], None] | None = None
        self.pace = pace or Pace()
        self._store = store
        self._clock = clock
        self._warm = warm
        self._roster = roster
        self._new_id = new_id
        self._tasks: set[asyncio.Task[Outcome]] = set()
        self._running: dict[SessionRef, asyncio.Task[Outcome]] = {}
        self._late: set[asyncio.Task[Outcome]] = set()
        """Jobs for which a turn has waited the full time `Pace.inline`. No other turn waits for them."""
        self._quiet: OrderedDict[tuple[SessionRef, str], int] = OrderedDict()
        self._closed = False

    # -- when a summary is made --------------------------------------------

    def compact_after_turn(self, ref: SessionRef, responder: Responder, built: WorkingSet, session: Session) -> None:
        """Start to make a summary in the background if the session needs one after a turn.

        The check reads nothing from the store, and takes the same time for every session.

        Args:
            ref: The session.
            responder: The agent and model that answered the turn.
            built: The last working set of the turn.
            session: The session after the last write of the turn.
        """
        made = built.request.strategy
        if responder.summarizer is None or made.summarizer is None or self._closed or ref in self._running:
            return
        room = built.request.make_room(built.budget)
        grown = session.tail.total - built.window.units[-1].entries[-1].total if built.window.units else 0
        if built.window.tokens + math.ceil(max(0, grown) * room.factor) <= int(made.summarize_at * room.tokens):
            return
        job = self._make_job(ref, responder, built.request, "after")
        if job is not None and not self._is_postponed(job):
            self._start(job)

    async def compact_inline(self, ref: SessionRef, responder: Responder, request: Request) -> bool:
        """Make a summary because the next prompt would not fit its budget without one. Return True if a summary was stored.

        If the result is True, the caller must build the view again. If a summary of the session is already being written, this
        method waits for that summary. It waits for at most `Pace.inline` seconds, and returns False after that. If the last
        attempt has just failed, it returns False at once. A summary that takes longer is finished after the turn, and no later
        turn waits for it. The method raises no errors.

        Args:
            ref: The session.
            responder: The agent and model that are about to answer.
            request: The request for which the working set is built.
        """
        job = self._make_job(ref, responder, request, "inline")
        if job is None or self._closed:
            return False
        task = self._running.get(ref)
        if task is None:
            if self._is_postponed(job):
                return False
            task = self._start(job)
        if task in self._late:
            return False
        done, _ = await asyncio.wait({task}, timeout=self.pace.inline)
        if not done:
            self._late.add(task)
            self.outcomes["late"] += 1
        return bool(done) and not task.cancelled() and task.result().word == "made"

    async def compact(
        self,
        ref: SessionRef,
        responder: Responder,
        request: Request,
        options: Mapping[str, Any] | None = None,
        *,
        preview: bool = False,
        writer: Writer | None = None,
    ) -> StoredCompaction | NewCompaction | None:
        """Make a summary at the request of a client, even if none is due.

        Args:
            ref: The session.
            responder: The agent and model whose prompts will contain the summary.
            request: The request for which these prompts are built.
            options: Keys of the strategy `summary_buffer` that apply only to this summary: `budget`, `target`, `summarizer_llm`,
                `prompt`.
            preview: True to store nothing, and to return the summary that would be stored.
            writer: Writes the summary if the strategy of `responder` has no model for it; None: the model or function that `options`
                name.

        Returns:
            The stored summary. If the attempt failed, the record of the attempt, with `error`. None if there is nothing to
            summarize.

        Raises:
            InvalidRequest: An option is unknown, or no model can write summaries.
            Conflict: Another process is summarizing the session, or the log changed during every attempt.
            SessionNotFound: The session does not exist.
        """
        job = self._prepare_requested_job(ref, responder, request, options or {}, preview=preview, writer=writer)
        while not preview and (running := self._running.get(ref)) is not None:
            await asyncio.wait({running})
        outcome = await asyncio.shield(self._spawn(job, self._run(job)))
        if outcome.word in ("busy", "outdated"):
            raise Conflict(_BUSY if outcome.word == "busy" else _CHANGED)
        return outcome.compaction

    def schedule(
        self,
        ref: SessionRef,
        responder: Responder,
        request: Request,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Start to make a summary in the background, even if none is due. The arguments are those of `compact`.

        Options and summarizer are checked before the method returns. If a summary of the session is already being made, no other
        one is started.

        Raises:
            InvalidRequest: An option is unknown, or no model can write summaries.
        """
        job = self._prepare_requested_job(ref, responder, request, options or {}, preview=False)
        if ref not in self._running:
            self._start(job)

    async def drop(self, ref: SessionRef, compaction_id: int) -> StoredCompaction:
        """Undo a compaction. Prompts contain its messages verbatim again, or the earlier compaction that it replaced.

        After that, these messages are summarized again only on request, or if the next prompt would not fit its budget.

        Raises:
            CompactionNotFound: No compaction with that id is in use.
        """
        dropped = await self._store.drop_compaction(ref, compaction_id, timestamp=self._clock())
        self._warm.forget(ref)
        self.outcomes["dropped"] += 1
        return dropped

    async def report(self, ref: SessionRef, key: str) -> dict[str, Any]:
        """Return the state of a view's summaries, as JSON data.

        Args:
            ref: The session.
            key: Key of the view.

        Returns:
            A dictionary. `live` is the id of the summary in use, or None. `failed` is None if the last attempt succeeded.
            Otherwise it contains `id` and `error` of the last attempt, the number of failed `attempts`, and `retry_at`, the time
            of the next attempt in milliseconds since the epoch.
        """
        found = await self._store.compactions(ref, view=key)
        live = next((one.id for one in reversed(found) if one.status == "live"), None)
        failures = _list_failures(found)
        report: dict[str, Any] = {"live": live, "failed": None}
        if failures:
            last = failures[-1]
            until = last.created_at + self._compute_pause(failures)
            report["failed"] = {"id": last.id, "error": last.error, "attempts": len(failures), "retry_at": until}
        return report

    async def is_pausing(self, ref: SessionRef, key: str) -> bool:
        """Return True if the last summary of a view failed, and the pause until the next attempt is not over."""
        failures = _list_failures(await self._store.compactions(ref, view=key))
        return bool(failures) and failures[-1].created_at + self._compute_pause(failures) > self._clock()

    async def wait_until_idle(self) -> None:
        """Wait until no summary is being made."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel all running jobs, and release their leases. The summaries can be made later. A second call does nothing."""
        self._closed = True
        for task in (tasks := tuple(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- jobs --------------------------------------------------------------

    def _make_job(self, ref: SessionRef, responder: Responder, request: Request, trigger: Trigger) -> Job | None:
        if responder.summarizer is None or request.strategy.summarizer is None:
            return None
        return Job(
            ref=ref,
            key=responder.view_key,
            request=request,
            how=request.strategy,
            writer=responder.summarizer,
            trigger=trigger,
        )

    def _prepare_requested_job(
        self,
        ref: SessionRef,
        responder: Responder,
        request: Request,
        options: Mapping[str, Any],
        *,
        preview: bool,
        writer: Writer | None = None,
    ) -> Job:
        if responder.history:
            raise InvalidRequest(_BUFFERED, param="max_history_turns")
        own = responder.context.strategy == STRATEGY
        base = responder.context if own else ContextSettings(STRATEGY)
        settings = parse({"strategy": None, **options}, where="", base=base) if options else base
        if settings.strategy != STRATEGY:
            raise InvalidRequest(f"strategy must be {STRATEGY}: only this strategy makes summaries", param="strategy")
        how = msgspec.structs.replace(made := make_strategy(settings), facts=made.facts and not is_child(ref))
        if writer is None or responder.summarizer is not None:
            writer = self._roster.find_summarizer(how.summarizer, responder.llm)
        if writer is None:
            raise InvalidRequest(_NO_SUMMARIZER, param="summarizer_llm")
        if not own and "budget" not in settings.options:
            how = msgspec.structs.replace(how, budget=responder.strategy.budget)
        return Job(
            ref=ref, key=responder.view_key, request=request, how=how, writer=writer, trigger="asked", preview=preview
        )

    def _start(self, job: Job) -> asyncio.Task[Outcome]:
        return self._spawn(job, self._run_quietly(job))

    def _spawn(self, job: Job, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        """Start the task of a job, and register it as the running job of its session unless it is a preview."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        if not job.preview:
            self._running[job.ref] = task
        task.add_done_callback(lambda done: self._forget_task(job.ref, done))
        return task

    def _forget_task(self, ref: SessionRef, task: asyncio.Task[Outcome]) -> None:
        self._tasks.discard(task)
        self._late.discard(task)
        if self._running.get(ref) is task:
            del self._running[ref]
        if not task.cancelled():
            task.exception()  # tells asyncio that the error was retrieved, because the caller may have been cancelled

    async def _run_quietly(self, job: Job) -> Outcome:
        """Run a job for which no caller waits. Errors are logged, and the view is checked again after a pause."""
        try:
            return await self._run(job)
        except SessionNotFound:
            return Outcome("gone")
        except Exception as exc:  # noqa: BLE001 - no turn may fail because of a summary
            level = logging.WARNING if isinstance(exc, HoldfastError) else logging.ERROR
            _log.log(level, "the summary of session %r failed", job.ref.id, exc_info=exc)
            self._postpone(job, self.pace.first_pause)
            self.outcomes["error"] += 1
            return Outcome("error")

    async def _run(self, job: Job) -> Outcome:
        if job.preview:
            return await self._summarize(job)
        try:
            length, name = self.pace.lease, _make_lease_name(job.ref)
            async with acquire_lease(self._store, name, self._new_id(), self._clock, length=length) as lease:
                if lease is None:
                    return Outcome("busy")
                async with lease.hold():
                    return await self._summarize(job)
        except TimeoutError:  # the lease could not be kept
            return Outcome("busy")

    # -- making one --------------------------------------------------------

    async def _summarize(self, job: Job) -> Outcome:
        outcome = Outcome("outdated")
        for _ in range(_PLANS):
            seen = await self._find_source(job)
            if isinstance(seen, str):
                return Outcome(seen)
            spent = SummaryCost()
            try:
                read = await read_source(self._store, job, seen)
                draft = self._redact(job, await write_summary(job.writer, read, spent, seconds=self.pace.call))
            except SummaryError as exc:
                return await self._record_failure(job, exc, make_attempt(job, seen, spent, self._clock()), seen)
            finally:
                self.spent.calls += spent.calls
                self.spent.prompt_tokens += spent.prompt_tokens
                self.spent.completion_tokens += spent.completion_tokens
                if self.on_spent is not None:
                    self.on_spent(spent)
            begun = make_attempt(job, seen, spent, self._clock())
            if not job.preview:
                # Messages that arrived while the summary was written were answered without it.
                now = await self._store.get(job.ref)
                begun = msgspec.structs.replace(begun, through=max(begun.last, now.tail.last_seq))
            new, view = await run_cpu(compose, job, seen, read, draft, begun)
            if job.preview:
                return Outcome("preview", new)
            outcome = await self._store_summary(job, new, view, seen)
            if outcome.word == "made":
                return outcome
        return outcome

    def _redact(self, job: Job, draft: Draft) -> Draft:
        """Return the draft with secrets masked.

        The text is also stored in the view, in a form in which the store cannot find secrets.
        """
        if self._guard is None:
            return draft
        return msgspec.structs.replace(
            draft, text=self._guard.mask_model_text(draft.text, "compaction.text", job.ref.id)
        )

    async def _find_source(self, job: Job) -> Source | str:
        """Return the source of the next summary. If no summary is made now, return the reason: `waiting` or `nothing`."""
        compactions: Sequence[StoredCompaction] = ()
        if job.trigger != "asked":
            compactions = await self._store.compactions(job.ref, view=job.key)
            failures = _list_failures(compactions)
            until = failures[-1].created_at + self._compute_pause(failures) if failures else 0
            if until > self._clock():
                self._postpone(job, until - self._clock())
                return "waiting"
        seen = await find_source(self._store, job)
        if seen is None:
            self._postpone(job, self.pace.look_again)
            return "nothing"
        if job.trigger == "after" and _is_range_dropped(compactions, seen.window):
            self._postpone(job, self.pace.look_again)
            return "waiting"
        return seen

    async def _store_summary(self, job: Job, new: NewCompaction, view: SavedView, seen: Source) -> Outcome:
        await faults.hit("before-summary-stored")
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

    async def _record_failure(self, job: Job, failure: SummaryError, begun: NewCompaction, seen: Source) -> Outcome:
        """Store a failed attempt, so that all processes wait longer before the next attempt.

        Return the outcome of the failed attempt.

        Args:
            job: The job.
            failure: The error.
            begun: The compaction without a text, from `make_attempt`.
            seen: The source of the summary.
        """
        self.outcomes[failure.reason] += 1
        _log.warning("the summary of session %r failed: %s", job.ref.id, failure)
        cause = failure.__cause__  # clients can read the stored error; the log also has the upstream's address
        public = cause.public_message if isinstance(cause, ModelError) else str(failure)
        error = public.encode(errors="replace")[:COMPACTION_ERROR_BYTES].decode(errors="ignore") or failure.reason
        report = {"reason": failure.reason, **({} if failure.pause is None else {"retry_after": failure.pause})}
        new = msgspec.structs.replace(begun, error=error, report=report)
        if job.preview:
            return Outcome("failed", new)
        write_ = Append(timestamp=self._clock(), identity=seen.session.identity, compactions=[new])
        appended = await self._store.append(job.ref, write_)
        self._postpone(job, self.pace.first_pause)
        return Outcome("failed", appended.compactions[0])

    # -- pauses ------------------------------------------------------------

    def _compute_pause(self, failures: Sequence[StoredCompaction]) -> int:
        """Return the milliseconds between the last failure and the next attempt.

        The pause doubles with each failure. It is at least the pause for which the model asked, and at most `Pace.longest_pause`.
        """
        grown = self.pace.first_pause << min(len(failures) - 1, 20)
        requested_pause = (failures[-1].report or {}).get("retry_after")
        wait = int(requested_pause * 1000) if isinstance(requested_pause, int | float) else 0
        return min(max(grown, wait), self.pace.longest_pause)

    def _is_postponed(self, job: Job) -> bool:
        # If the next call would not fit, check again, even if no summary was due after the last turn.
        return self._quiet.get((job.ref, job.key), 0) > self._clock() and job.trigger != "inline"

    def _postpone(self, job: Job, pause: int) -> None:
        self._quiet[job.ref, job.key] = self._clock() + pause
        self._quiet.move_to_end((job.ref, job.key))
        while len(self._quiet) > _CHECK_VIEWS:
            self._quiet.popitem(last=False)


_BUFFERED: Final = (
    "summaries cannot be made while max_history_turns is set: a summary would repeat what has left the buffer"
)
_NO_SUMMARIZER: Final = (
    "no model can write a summary: the built-in offline model cannot, and uses the digest instead;"
    " set summarizer_llm to the name of an llm"
)
_CHANGED: Final = "the session changed while it was being summarized; try again"
_BUSY: Final = "the session is being summarized at this moment; read its compactions later"


def _list_failures(compactions: Sequence[StoredCompaction]) -> list[StoredCompaction]:
    """Return the failed attempts after the newest compaction that succeeded, oldest first."""
    failures: list[StoredCompaction] = []
    for compaction in reversed(compactions):
        if compaction.status != "failed":
            break
        failures.insert(0, compaction)
    return failures


def _is_range_dropped(compactions: Sequence[StoredCompaction], window: Window) -> bool:
    """Return True if the oldest messages that would be summarized belonged to a summary that a client dropped."""
    dropped = max((one.last for one in compactions if one.status == "dropped"), default=-1)
    return bool(window.units) and window.units[0].first <= dropped


def _make_lease_name(ref: SessionRef) -> str:
    """Return the name of a session's lease. It is a hash, so that it is short even if the ids of user and session are long."""
    return f"summary-{hashlib.blake2b(msgspec.json.encode(ref), digest_size=16).hexdigest()}"
