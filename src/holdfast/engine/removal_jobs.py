"""Complete erasures and deletions of users that a process has begun and not finished."""

from __future__ import annotations

import logging
from typing import Final

from holdfast.engine.engine import Engine
from holdfast.engine.erasure import resume_erasure
from holdfast.engine.session_removal import resume_user_removal
from holdfast.errors import HoldfastError

_log: Final = logging.getLogger("holdfast.deletions")


async def resume_jobs(engine: Engine) -> None:
    """Complete the recorded jobs of a tenant that do not run in this process.

    Another process may run one of them at the same time, which does no harm. A job that fails stays recorded.
    """
    for job in await engine.store.jobs():
        if job.id in engine.running_jobs:
            continue
        try:
            await (resume_user_removal(engine, job) if job.kind == "user" else resume_erasure(engine, job))
        except HoldfastError as exc:
            _log.error("a removal (%s) could not be completed; it will be retried: %s", job.kind, exc)
