"""A program that serves tools of its own:

`count` returns how often it ran, from a database that outlives the process. Its claims expire after
`TOOL_SERVER_LEASE` milliseconds, by default three seconds instead of thirty, so the successor of a killed server
waits less.
"""

from __future__ import annotations

import os
import sqlite3
import sys

from holdfast.config.loader import load_settings
from holdfast.engine import session_lock
from holdfast.server.run import serve


def count() -> int:
    """Count this call."""
    with sqlite3.connect(os.environ["TOOL_SERVER_COUNTS"]) as counts:
        counts.execute("CREATE TABLE IF NOT EXISTS runs (at INTEGER PRIMARY KEY)")
        counts.execute("INSERT INTO runs DEFAULT VALUES")
        (runs,) = counts.execute("SELECT count(*) FROM runs").fetchone()
    return int(runs)


def shorten_lease() -> None:
    """Let claims expire, and be renewed, sooner."""
    lease = int(os.environ.get("TOOL_SERVER_LEASE", "3000"))
    for name, sooner in (("LEASE", lease), ("RENEWAL_MS", lease // 3)):
        setattr(session_lock, name, sooner)


if __name__ == "__main__":
    shorten_lease()
    sys.exit(serve(load_settings({}, os.environ), tools=[count]))
