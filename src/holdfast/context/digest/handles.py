"""Handles: what names a call in a digest: its tool, and those of its arguments that say what it is about."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from holdfast.context.values import MAX_KEY, MAX_TEXT, NUMBERED, clean, decode, label_of, weight_under

HANDLE = 48
"""Characters of arguments that name a call; the others are facts of it."""
FIRST_NAME, NAME_HEAD = 100, 24
"""Longest argument that names a call whole, a command or a path say; and how much of a longer one does."""
WORD = 16
"""Characters that stay for a word next to a long path."""
_FILE = re.compile(r"[/\\@]|\w\.[A-Za-z]\w{0,5}$")
"""What a path, an address or the name of a file has."""


def name_call(arguments: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments that name a call, and all others.

    What identifies comes first, whatever its place: a path or an identifier, then the short rest in order. Where nothing
    identifies, the first argument names the call if it is short enough.
    """
    if not isinstance(arguments, dict):
        return [], {"input": arguments} if arguments else {}
    texts = {key: clean(value) for key, value in arguments.items() if isinstance(value, str)}
    texts = {key: text for key, text in texts.items() if 0 < len(text) <= FIRST_NAME}
    naming = [key for key, text in texts.items() if _identifies(key, text)]
    names: list[str] = []
    told: set[str] = set()
    free = HANDLE
    for key in (*naming, *(key for key in texts if key not in naming)):
        text = texts[key]
        if not names or (len(text) <= min(free, MAX_KEY) and not (naming and (" " in text or len(text) < 2))):
            names.append(text)
            told.add(key)
            free = max(free - len(text) - 2, WORD * (len(names) == 1))
    rest = {key: value for key, value in arguments.items() if key not in told and value not in (None, "", [], {})}
    return names, rest


def _identifies(key: str, text: str) -> bool:
    """Return True for what says which one: a path, or what is written like an identifier."""
    return " " not in text and (weight_under(key, text) >= NUMBERED or bool(_FILE.search(text)))


def head_of(rest: dict[str, Any]) -> str:
    """The head of the first text among `rest`: a handle that says nothing would name nothing."""
    first = next((value for value in rest.values() if isinstance(value, str)), "")
    text = clean(first[:MAX_TEXT])
    return f"{text[:NAME_HEAD]}…" if len(text) > NAME_HEAD else text


def asked_of(arguments: str) -> list[str]:
    """The names of a call's arguments, nested ones too."""
    return names_in(decode(arguments))


def names_in(arguments: Any) -> list[str]:
    """The names of arguments, nested ones too: what tools of this session want to know."""
    found: dict[str, None] = {}
    todo = [arguments]
    while todo and len(found) < MAX_KEY:
        value = todo.pop()
        if isinstance(value, dict):
            found.update(dict.fromkeys(map(label_of, islice(value, MAX_KEY))))
            todo += islice(value.values(), MAX_KEY)
        elif isinstance(value, list):
            todo += value[:4]
    return list(found)
