"""Count what users of this project meet (commands, routes, keys, names), and the floors of its packages."""

from __future__ import annotations

from functools import cache
from typing import Final

import click
import grimp

import holdfast
from holdfast.server.app import ROUTES
from scripts.configuration_keys import list_rows
from scripts.reference import list_contexts

SEED_ROUTES: Final = frozenset(
    {
        ("GET", "/sessions"),
        ("GET", "/sessions/{session_id}"),
        ("DELETE", "/sessions/{session_id}"),
        ("GET", "/v1/sessions/{session_id}/state"),
        ("PATCH", "/v1/sessions/{session_id}/state"),
    }
)
"""Second spellings of routes, which documents that the product was asked for write out. They do not count."""


def count_surface() -> dict[str, int]:
    """Count commands, routes, configuration keys, public names and floors.

    A command is one that does something, so groups of commands do not count. A route is a method on a path, without the pages of the
    inspector and the second spellings above. A key is a row of docs/configuration-keys.md. A name is one of `holdfast.__all__`.
    """
    return {
        "commands": sum(not isinstance(one.command, click.Group) for one in list_contexts()),
        "routes": len({(route.method, route.path) for route in ROUTES} - SEED_ROUTES),
        "configuration keys": len(list(list_rows())),
        "public names": len(holdfast.__all__),
        "floors": count_floors(),
    }


def count_floors() -> int:
    """Return the length of the longest chain of imports between rooms: the packages and modules directly in `holdfast`."""
    graph = grimp.build_graph("holdfast", cache_dir=".import_linter_cache")
    rooms = graph.find_children("holdfast") - {"holdfast.__main__"}
    for room in rooms:
        graph.squash_module(room)

    @cache
    def get_floor(room: str) -> int:
        imported = graph.find_modules_directly_imported_by(room) & rooms
        return 1 + max(map(get_floor, imported - {room}), default=0)

    return max(map(get_floor, rooms))
