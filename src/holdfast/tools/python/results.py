"""What the model is told of a call: an object without empty fields, as long as a result may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.tools.python.calls import Ran
from holdfast.tools.python.files import Kept
from holdfast.tools.tool import cut

_TEXTS: Final = ("stdout", "stderr", "result", "exception")
"""Texts that may be long, in the order in which they are cut: what says most of what went wrong last."""
_LISTS: Final = ("files", "plots", "not_kept")
_LEAST: Final = 256
"""Bytes that are left of each text."""
_FEWEST: Final = 3
"""Items that are left of each list."""
_MORE: Final = "more_"


def told(ran: Ran, kept: Kept, notes: list[str], most: int) -> dict[str, Any]:
    """What came of a call, for the model.

    Args:
        ran: what came of the code.
        kept: what became of its files.
        notes: what else there is to say.
        most: bytes of it as JSON. Output is cut first, tracebacks last.
    """
    result = {
        "status": ran.status,
        "result": ran.result,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "exception": ran.exception,
        "files": kept.files,
        "plots": kept.plots,
        "not_kept": kept.not_kept,
        "note": "; ".join(notes),
        "seconds": round(ran.seconds, 3),
    }
    return fitted({key: value for key, value in result.items() if value not in (None, "", [])}, most)


def fitted(result: Mapping[str, Any], most: int) -> dict[str, Any]:
    """`result` in at most `most` bytes of JSON, as far as cutting its texts and lists goes."""
    found = dict(result)
    for name in _TEXTS:
        _shorten(found, name, most, _LEAST)
    for name in _LISTS:
        items = found.get(name, [])
        while len(items) > _FEWEST and _size(found) > most:
            items = items[: max(_FEWEST, len(items) // 2)]
            found |= {name: items, _MORE + name: len(result[name]) - len(items)}
    return found


def _shorten(found: dict[str, Any], name: str, most: int, least: int) -> None:
    """Cut one text, so that all of it fits if that is enough. As JSON it may be longer than it is: so by steps."""
    text = found.get(name, "")
    while (over := _size(found) - most) > 0 and len(found.get(name, "").encode()) > least:
        now = found[name].encode()
        room = len(now) - max(over * len(now) // _size(found[name]), 1)
        found[name] = cut(text, max(least, room))


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))
