"""Show how prompts differ, for people: messages that are new, gone or changed; the same difference of several prompts once."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.pinned.prompts import Prompt, Prompts

GROUPS: Final = 12
LINES: Final = 40
"""Number of differences that are shown of one conversation, and lines of each."""
_WIDTH: Final = 160
_AROUND: Final = 6
"""Words that are shown before and after changed ones."""
_ALIKE: Final = 0.3
"""Least similarity, from 0 to 1, of two messages in the same place that count as one changed message."""


class Change(NamedTuple):
    """One prompt that differs."""

    key: str
    tokens: str
    lines: tuple[str, ...]


def show_differences(name: str, before: Prompts, after: Prompts, *, whole: bool = False) -> list[str]:
    """Return lines that show how the prompts of a conversation differ; none if they are equal.

    Args:
        name: the conversation.
        before, after: its prompts.
        whole: True: show everything, however long.
    """
    groups: dict[tuple[str, ...], list[Change]] = {}
    for change in _list_changes(before, after):
        groups.setdefault(tuple(line for line in change.lines if not line.startswith("message ")), []).append(change)
    lines = []
    for number, changes in enumerate(groups.values()):
        body = changes[0].lines
        if number == GROUPS and not whole:
            lines.append(f"{name}: {len(groups) - GROUPS} more differences; --all shows them")
            break
        lines.append(f"{name}:")
        lines += [f"  {change.key}{change.tokens}" for change in changes]
        lines += [f"    {line}" for line in (body if whole else body[:LINES])]
        lines += [] if whole or len(body) <= LINES else [f"    … {len(body) - LINES} more lines; --all shows them"]
    return lines


def _list_changes(before: Prompts, after: Prompts) -> Iterator[Change]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if old is None or new is None:
            yield Change(key, "", ("this prompt is new",) if old is None else ("this prompt is gone",))
            continue
        body = tuple(_compare(_list_messages(old), _list_messages(new)))
        yield Change(key, _compare_tokens(old, new), body or ("only the form of the messages or the counts differ",))


def _compare_tokens(old: Prompt, new: Prompt) -> str:
    if "tokens" not in old or "tokens" not in new:
        return ""
    if old["tokens"] == new["tokens"]:
        return f" ({new['tokens']} tokens, as before)"
    return f" ({old['tokens']} → {new['tokens']} tokens)"


def _list_messages(prompt: Prompt) -> list[str]:
    """Return the messages of a prompt as text, in the same form for each dialect."""
    if "error" in prompt:
        return [f"refused: {prompt['error']}"]
    if "decisions" in prompt:
        return list(prompt["decisions"])
    system = prompt.get("system")
    return [*([f"system: {_to_text(system)}"] if system else []), *map(_describe, prompt["messages"])]


def _describe(message: Mapping[str, Any]) -> str:
    role = "assistant" if message["role"] == "model" else message["role"]
    parts = [_to_text(message[key]) for key in ("content", "parts") if message.get(key)]
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "parts")}
    parts += [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in rest.items()]
    return f"{role}: " + "\n".join(parts)


def _to_text(content: Any) -> str:
    match content:
        case str():
            return content
        case {"text": str(text)}:
            return text
        case {"parts": list(parts)}:
            return _to_text(parts)
        case list():
            return "\n".join(map(_to_text, content))
    return json.dumps(content, ensure_ascii=False)


def _compare(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for tag, start, stop, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        gone, come = list(old[start:stop]), list(enumerate(new[first:last], first + 1))
        while gone and come:
            number, text = come[0]
            if _is_alike(gone[0], text):
                yield f"message {number} changed ({_cut(text, 40)}):"
                yield from (f"  {line}" for line in _compare_lines(_drop_role(gone.pop(0)), _drop_role(text)))
                come.pop(0)
            elif len(gone) >= len(come):
                yield f"- {_cut(gone.pop(0))}"
            else:
                yield f"+ {_cut(come.pop(0)[1])}"
        yield from (f"- {_cut(one)}" for one in gone)
        yield from (f"+ {_cut(one)}" for _, one in come)


def _drop_role(message: str) -> str:
    return message.partition(": ")[2]


def _is_alike(old: str, new: str) -> bool:
    if old.partition(":")[0] != new.partition(":")[0]:
        return False
    return difflib.SequenceMatcher(None, old.split(), new.split(), autojunk=False).ratio() >= _ALIKE


def _compare_lines(old: str, new: str) -> Iterator[str]:
    was, now = old.splitlines(), new.splitlines()
    for tag, start, stop, first, last in difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        pairs = min(stop - start, last - first)
        for one, other in zip(was[start : start + pairs], now[first : first + pairs], strict=True):
            yield _compare_words(one, other)
        yield from (f"- {_cut(line)}" for line in was[start + pairs : stop])
        yield from (f"+ {_cut(line)}" for line in now[first + pairs : last])


def _compare_words(old: str, new: str) -> str:
    """Return one line with the words that are gone in `[-…-]`, and those that came in `{+…+}`."""
    was, now = re.findall(r"\s+|\w+|[^\w\s]", old), re.findall(r"\s+|\w+|[^\w\s]", new)
    shown = []
    for tag, start, stop, first, last in difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if tag == "equal":
            same = was[start:stop]
            is_long = len(same) > 4 * _AROUND
            shown += [*same[: 2 * _AROUND], " … ", *same[-2 * _AROUND :]] if is_long else same
            continue
        shown += ["[-", *was[start:stop], "-]"] if stop > start else []
        shown += ["{+", *now[first:last], "+}"] if last > first else []
    return "".join(shown)


def _cut(text: str, width: int = _WIDTH) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[:width]}… ({len(text)} characters)"
