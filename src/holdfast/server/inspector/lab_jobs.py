"""Run replays for the strategy lab: in pieces, in the background, within limits, and visible to their owner only.

A job is kept in memory and lost when the server restarts. Its recordings are released when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_urlsafe
from typing import Literal

from holdfast.accounting import Owner, get_owner, run_cpu
from holdfast.errors import HoldfastError, InvalidRequest, TooLarge
from holdfast.replay import PlayResult, Run, Spec, Tally, add_up, list_values, play_session
from holdfast.server.limits import (
    LAB_JOBS,
    LAB_JOBS_OF_PRINCIPAL,
    LAB_JOBS_RUNNING,
    LAB_KEPT_SECONDS,
    LAB_MESSAGES,
    LAB_PIECE_SECONDS,
    LAB_RUN_SECONDS,
    LAB_RUNS,
    LAB_SESSIONS,
    LAB_VALUES,
)
from holdfast.server.permissions import Refused
from holdfast.wire.transcripts import Recording

_log = logging.getLogger("holdfast.server")
JobState = Literal["running", "done", "cancelled", "stopped", "failed"]
"""State of a job. `stopped`: it exceeded the time limit. `failed`: a replay raised an error."""


def check_recordings(sessions: Sequence[Recording]) -> None:
    """Raise `TooLarge` if recordings exceed the limits of a job, or `InvalidRequest` if there are none."""
    if not sessions:
        raise InvalidRequest("there are no recordings: paste some, upload a file, or pick sessions", param="recordings")
    if len(sessions) > LAB_SESSIONS:
        raise TooLarge(f"there are {len(sessions):,} sessions; at most {LAB_SESSIONS:,} are replayed together")
    messages = sum(len(one.messages) for one in sessions)
    if messages > LAB_MESSAGES:
        raise TooLarge(f"the sessions have {messages:,} messages; at most {LAB_MESSAGES:,} are replayed together")
    for one in sessions:
        # Each value is searched in all earlier messages, so the time of one call grows with their number.
        if any(len(list_values(message)) > LAB_VALUES for message in one.messages if message.tool_calls):
            raise TooLarge(f"{one.id}: a message calls tools with more than {LAB_VALUES:,} argument values")


def check_runs(runs: Mapping[Run, Spec]) -> None:
    """Raise `TooLarge` if there are too many runs."""
    if len(runs) > LAB_RUNS:
        raise TooLarge(
            f"{len(runs):,} runs (strategies times budgets) were requested; at most {LAB_RUNS:,} are allowed"
        )


class LabJob:
    """A replay of recordings through strategies, each with some budgets.

    Args:
        job_id: id, which nobody can guess.
        owner: the principal that started the job.
        sessions: the recordings.
        runs: the runs, in order.
        now: time of the start in milliseconds.

    Attributes:
        results: results of the runs so far.
        done: number of sessions that were replayed, over all runs.
        total: number of sessions to replay, over all runs.
        finished: set when the job has ended.
        cpu_seconds: CPU time so far.
        used_at: time when the owner last opened the page of the job, in milliseconds.
    """

    def __init__(
        self, job_id: str, owner: Owner, sessions: Sequence[Recording], runs: Mapping[Run, Spec], now: int
    ) -> None:
        self.id = job_id
        self.owner = owner
        self.created_at = self.used_at = now
        self.state: JobState = "running"
        self.error = ""
        self.results: list[PlayResult] = []
        self.done, self.total = 0, len(sessions) * len(runs)
        self.sessions, self.runs = len(sessions), list(runs)
        self.finished = asyncio.Event()
        self.cpu_seconds = 0.0
        self._steps: Iterator[None] | None = self._replay(sessions, dict(runs))
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True if the job has not ended."""
        return self.state == "running"

    @property
    def current(self) -> Run | None:
        """The run in progress; None if all are over."""
        return self.runs[len(self.results)] if len(self.results) < len(self.runs) else None

    def start(self) -> None:
        """Start the job in the background, as work of the principal of this request."""
        self._task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        """End the job. The results of the finished runs stay."""
        if self.is_running:
            self.state = "cancelled"

    async def _run(self) -> None:
        try:
            while self.is_running and await run_cpu(self._advance):
                if self.cpu_seconds > LAB_RUN_SECONDS:
                    self.state = "stopped"
        except HoldfastError as exc:
            self.state, self.error = "failed", str(exc)
        except Exception:  # noqa: BLE001 - a task has no caller that could report it
            _log.exception("a replay of the strategy lab failed unexpectedly")
            self.state, self.error = "failed", "internal error; see the server's log"
        finally:
            self.state = "done" if self.is_running else self.state
            self._steps = None  # releases the recordings
            self.finished.set()

    def _advance(self) -> bool:
        """Replay for a short time, in a thread. Return True if there is more to do."""
        assert self._steps is not None, "the job has ended"
        began, end = time.thread_time(), time.perf_counter() + LAB_PIECE_SECONDS
        try:
            for _ in self._steps:
                if time.perf_counter() > end or not self.is_running:
                    return True
        finally:
            self.cpu_seconds += time.thread_time() - began
        return False

    def _replay(self, sessions: Sequence[Recording], runs: Mapping[Run, Spec]) -> Iterator[None]:
        for (_, budget), spec in runs.items():
            rule, tallies = spec.make_strategy(budget), []
            for session in sessions:
                tally = Tally()
                yield from play_session(session, rule, budget, tally)
                tallies.append((session.id, tally))
                self.done += 1
            self.results.append(add_up(spec, budget, tallies))


class LabJobs:
    """The jobs of one server, within limits for the server and for each principal.

    Attributes:
        jobs: all jobs by id, the oldest first.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, LabJob] = {}

    def start(self, sessions: Sequence[Recording], runs: Mapping[Run, Spec], now: int) -> LabJob:
        """Start a job for the principal of this request.

        Args:
            sessions: the recordings, checked with `check_recordings`.
            runs: the runs, checked with `check_runs`.
            now: current time in milliseconds.

        Raises:
            Refused: the principal has a running job, or the server has too many.
        """
        owner = get_owner()
        self._drop_expired(now)
        if any(one.is_running for one in self.list_own(now)):
            raise Refused(429, "lab_busy", "another run of yours is in progress: wait until it ends, or cancel it")
        running = Counter(one.owner.tenant for one in self.jobs.values() if one.is_running)
        if running.total() >= LAB_JOBS_RUNNING or running[owner.tenant] >= LAB_JOBS_RUNNING - 1:
            message = f"the lab is busy with {running.total()} runs of others; try again in a minute"
            raise Refused(429, "lab_busy", message, retry_after="60")
        self._drop_oldest(LAB_JOBS_OF_PRINCIPAL, lambda one: one.owner == owner)
        [(tenant, count)] = Counter(one.owner.tenant for one in self.jobs.values()).most_common(1) or [("", 0)]
        # The tenant with the most results loses one, so that no tenant can make the others lose theirs.
        self._drop_oldest(LAB_JOBS - len(self.jobs) + count, lambda one: one.owner.tenant == tenant)
        job = LabJob(token_urlsafe(18), owner, sessions, runs, now)
        self.jobs[job.id] = job
        job.start()
        return job

    def get(self, job_id: str, now: int) -> LabJob:
        """Return a job of the principal of this request. Raise `Refused` if it has none with this id."""
        self._drop_expired(now)
        job = self.jobs.get(job_id)
        if job is None or job.owner != get_owner():
            message = (
                f"there is no such run. Results are kept for {LAB_KEPT_SECONDS // 60} minutes after you last saw them"
            )
            raise Refused(404, "run_not_found", message)
        job.used_at = now
        return job

    def list_own(self, now: int) -> list[LabJob]:
        """Return the jobs of the principal of this request, newest first."""
        self._drop_expired(now)
        owner = get_owner()
        return [one for one in reversed(self.jobs.values()) if one.owner == owner]

    def _drop_expired(self, now: int) -> None:
        for one in list(self.jobs.values()):
            if not one.is_running and now - one.used_at > LAB_KEPT_SECONDS * 1000:
                del self.jobs[one.id]

    def _drop_oldest(self, most: int, counts: Callable[[LabJob], bool]) -> None:
        """Drop the oldest ended jobs that `counts` selects, so that one more fits the limit."""
        counted = [one for one in self.jobs.values() if counts(one)]
        ended = [one for one in counted if not one.is_running]
        for one in ended[: max(0, len(counted) - most + 1)]:
            del self.jobs[one.id]
