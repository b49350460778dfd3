"""What tests of the SQLite store share: one in a file, and the threads of a store."""

from __future__ import annotations

import threading
from pathlib import Path

from holdfast.stores import open_store
from holdfast.stores.base import Store


async def open_file(database: Path) -> Store:
    """The store in the file `database`."""
    return await open_store(f"sqlite:///{database}", tenant="acme")


async def open_once(database: Path) -> None:
    """The file, made if there is none, and let go of."""
    await (await open_file(database)).close()


def store_threads() -> list[threading.Thread]:
    """Those that stores of this process have."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("holdfast")]
