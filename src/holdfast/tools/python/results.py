"""Format the result of a call for the model: a JSON object without empty fields, within a size limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.tools.python.calls import CallResult
from holdfast.tools.python.files import SavedFiles
from holdfast.tools.tool import cut

_TEXTS: Final = ("stdout", "stderr", "result", "exception")
"""Fields with texts that may be long, in the order in which they are cut. Texts that explain errors best are cut last."""
_LISTS: Final = ("files", "plots", "not_kept")
_LEAST: Final = 256
"""Bytes of each text that are always kept."""
_FEWEST: Final = 3
"""Number of items of each list that are always kept."""
_MORE: Final = "more_"


def format_result(ran: CallResult, saved: SavedFiles, notes: list[str], most: int) -> dict[str, Any]:
    """Return the result of a call as an object for the model.

    Args:
        ran: result of the code.
        saved: the saved files and plots of the call.
        notes: notes for the model.
        most: maximum bytes of the object as JSON. Standard output is cut first, the traceback last.
    """
    result = {
        "status": ran.status,
        "result": ran.result,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "exception": ran.exception,
        "files": saved.files,
        "plots": saved.plots,
        "not_kept": saved.not_kept,
        "note": "; ".join(notes),
        "seconds": round(ran.seconds, 3),
    }
    return fit_result({key: value for key, value in result.items() if value not in (None, "", [])}, most)


def fit_result(result: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Shorten the texts and lists of a result until its JSON has at most `most` bytes, as far as possible."""
    found = dict(result)
    for name in _TEXTS:
        _shorten(found, name, most, _LEAST)
    for name in _LISTS:
        items = found.get(name, [])
        while len(items) > _FEWEST and _count_json_bytes(found) > most:
            items = items[: max(_FEWEST, len(items) // 2)]
            found |= {name: items, _MORE + name: len(result[name]) - len(items)}
    return found


def _shorten(found: dict[str, Any], name: str, most: int, least: int) -> None:
    """Cut one text until the whole result has at most `most` bytes as JSON, but keep at least `least` bytes of the text.

    The size of a text in JSON cannot be calculated from its length, so this may take several attempts.
    """
    text = found.get(name, "")
    while (over := _count_json_bytes(found) - most) > 0 and len(found.get(name, "").encode()) > least:
        now = found[name].encode()
        room = len(now) - max(over * len(now) // _count_json_bytes(found[name]), 1)
        found[name] = cut(text, max(least, room))


def _count_json_bytes(value: Any) -> int:
    return len(msgspec.json.encode(value))
