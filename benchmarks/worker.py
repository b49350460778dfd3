"""One of several processes on a database: `python -m benchmarks.worker URL SESSIONS NUMBER SECONDS` prints its number of turns as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.corpus import SampleSession, make_roster, make_text
from benchmarks.peers import BUDGET
from benchmarks.sessions import ENTRIES
from benchmarks.turn import ANSWER
from holdfast.holdfast import Holdfast

STEP = 3.0
"""Seconds. All processes start at the next multiple of this time, when each of them is set up."""


async def run_turns(url: str, sessions: int, number: int, seconds: float) -> int:
    """Take turns in `sessions` new sessions for `seconds`; return the number of turns."""
    sample, done = SampleSession(ENTRIES), 0
    async with Holdfast(url, roster=make_roster("token_window", BUDGET)) as hf:
        refs = [await sample.store_session(hf, f"p{number}-{time.time_ns()}-{at}", ENTRIES) for at in range(sessions)]
        handles = [await hf.session(ref.id, user_id=ref.user_id) for ref in refs]
        await asyncio.sleep(STEP - time.time() % STEP)
        end = time.monotonic() + seconds

        async def task(at: int) -> None:
            nonlocal done
            while time.monotonic() < end:
                async with handles[at].turn(f"{make_text(at)} {done}") as opened:
                    opened.add(ANSWER)
                done += 1

        await asyncio.gather(*map(task, range(sessions)))
    return done


if __name__ == "__main__":
    given_url, given_sessions, given_number, given_seconds = sys.argv[1:]
    turns = asyncio.run(run_turns(given_url, int(given_sessions), int(given_number), float(given_seconds)))
    print(json.dumps({"turns": turns}))
