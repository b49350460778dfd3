"""A program that serves tools of its own: `count` says how often it ran, by a database that outlives the process."""

from __future__ import annotations

import os
import sqlite3
import sys

from holdfast.config import settings_from
from holdfast.server.run import serve


def count() -> int:
    """Count this call."""
    with sqlite3.connect(os.environ["TOOL_SERVER_COUNTS"]) as counts:
        counts.execute("CREATE TABLE IF NOT EXISTS runs (at INTEGER PRIMARY KEY)")
        counts.execute("INSERT INTO runs DEFAULT VALUES")
        (runs,) = counts.execute("SELECT count(*) FROM runs").fetchone()
    return int(runs)


if __name__ == "__main__":
    sys.exit(serve(settings_from({}, os.environ), tools=[count]))
