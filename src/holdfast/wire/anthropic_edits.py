"""Anthropic's context editing: the field `context_management` of a request, and the report in the reply.

Follows the API reference, "Context editing". `clear_tool_uses_20250919` is served for every upstream by the option `clear_tool_results` of
Holdfast's strategies, whose keys have the same meaning. The other edits are passed on to an Anthropic model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from holdfast.context.dialects import parse_thoughts
from holdfast.context.window import Window
from holdfast.errors import InvalidRequest
from holdfast.numbers import check_whole
from holdfast.wire.anthropic_compaction import COMPACT, CompactionWish, parse_compact_edit

FIELD: Final = "context_management"
CLEAR_TOOL_USES: Final = "clear_tool_uses_20250919"
CLEAR_THINKING: Final = "clear_thinking_20251015"
SERVED_FOR_OTHERS: Final = frozenset({COMPACT, CLEAR_THINKING})
"""Edits that an Anthropic model gets, and that Holdfast serves for other models."""
_MOST: Final = 2**31
_KEYS: Final = frozenset({"type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"})
_TRIGGER: Final = 100_000
"""Anthropic's default of `trigger`, in tokens."""
_KEEP: Final = 3
"""Anthropic's default of `keep`, in tool uses."""


class Edits(NamedTuple):
    """The edits of a request."""

    clearing: dict[str, Any] | None
    """Options of `clear_tool_results`; None: the request does not clear tool uses."""
    others: list[Any]
    """Edits that an Anthropic model gets. Of these, Holdfast serves those in `SERVED_FOR_OTHERS` for other models."""
    compaction: CompactionWish | None = None
    """When the conversation is to be compacted; None: never."""
    thinking: int | None = None
    """Number of newest turns whose reasoning stays; None: all."""


def parse_edits(given: Any) -> Edits:
    """Parse the field `context_management`.

    Raises:
        InvalidRequest: The field is not valid. The error names the place.
    """
    if given is None:
        return Edits(None, [])
    edits = given.get("edits") if isinstance(given, Mapping) else None
    if not isinstance(edits, list):
        raise InvalidRequest(f"{FIELD} must be an object with a list of edits", param=FIELD)
    clearing: dict[str, Any] | None = None
    compaction: CompactionWish | None = None
    thinking: int | None = None
    others: list[Any] = []
    for at, edit in enumerate(edits):
        where = f"{FIELD}.edits[{at}]"
        if not isinstance(edit, Mapping) or not isinstance(edit.get("type"), str):
            raise InvalidRequest(f"{where} must be an object with a type", param=where)
        if edit["type"] == COMPACT:
            _refuse_second(compaction, edit, where)
            compaction = parse_compact_edit(edit, where)
        if edit["type"] == CLEAR_THINKING:
            _refuse_second(next((one for one in others if one["type"] == CLEAR_THINKING), None), edit, where)
            thinking = _parse_thinking(edit, where)
        if edit["type"] != CLEAR_TOOL_USES:
            others.append(edit)
            continue
        _refuse_second(clearing, edit, where)
        clearing = _parse_clearing(edit, where)
    return Edits(clearing, others, compaction, thinking)


def _refuse_second(first: Any, edit: Mapping[str, Any], where: str) -> None:
    if first is not None:
        raise InvalidRequest(f"{where}: {edit['type']} may appear only once", param=where)


def _parse_thinking(edit: Mapping[str, Any], where: str) -> int | None:
    """Return the number of newest turns whose reasoning stays, by an edit of type `clear_thinking_20251015`; None for all."""
    if unknown := sorted(edit.keys() - {"type", "keep"}):
        raise InvalidRequest(f"{where} has the unknown key {unknown[0]!r:.80}", param=where)
    keep = edit.get("keep")
    if keep == "all" or (isinstance(keep, Mapping) and keep.get("type") == "all"):
        return None
    kind, value = _parse_amount(keep, ("thinking_turns",), f"{where}.keep", 1)
    if kind is not None:
        check_whole(value, f"{where}.keep.value", 1, _MOST)
    return value


def _parse_clearing(edit: Mapping[str, Any], where: str) -> dict[str, Any]:
    if unknown := sorted(edit.keys() - _KEYS):
        raise InvalidRequest(f"{where} has the unknown key {unknown[0]!r:.80}", param=where)
    kind, value = _parse_amount(edit.get("trigger"), ("input_tokens", "tool_uses"), f"{where}.trigger")
    options: dict[str, Any] = {"trigger": _TRIGGER} if kind is None else {}
    if kind is not None:
        options = {"trigger" if kind == "input_tokens" else "trigger_uses": max(1, value)}
    _, keep = _parse_amount(edit.get("keep"), ("tool_uses",), f"{where}.keep", _KEEP)
    _, least = _parse_amount(edit.get("clear_at_least"), ("input_tokens",), f"{where}.clear_at_least", 0)
    options |= {"keep": keep, "clear_at_least": least, "exclude_tools": _parse_names(edit, "exclude_tools", where)}
    inputs = edit.get("clear_tool_inputs")
    if isinstance(inputs, bool):
        options["clear_tool_inputs"] = inputs
    elif inputs is not None:
        options["clear_inputs_of"] = _parse_names(edit, "clear_tool_inputs", where)
    return options


def _parse_amount(given: Any, kinds: tuple[str, ...], where: str, default: int = 0) -> tuple[str | None, int]:
    """Return the type and the value of an amount such as `{type: tool_uses, value: 3}`; None and the default if it is missing."""
    if given is None:
        return None, default
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in kinds:
        raise InvalidRequest(f"{where} must be an object with type {' or '.join(kinds)} and a value", param=where)
    check_whole(given.get("value"), f"{where}.value", 0, _MOST)
    return kind, given["value"]


def _parse_names(edit: Mapping[str, Any], name: str, where: str) -> list[str]:
    names = edit.get(name) or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise InvalidRequest(f"{where}.{name} must be a list of tool names", param=f"{where}.{name}")
    return names


def report_edits(window: Window | None) -> dict[str, Any]:
    """Return the field `context_management` of a reply: what was cleared in its prompt."""
    uses = tokens = thinking_tokens = 0
    turns: set[int] = set()
    for unit in () if window is None else (*window.head, *window.units):
        for entry in unit.entries:
            cut = window.cuts.get(entry.seq) if window is not None else None
            if cut is None or not cut.cleared:
                continue
            freed = max(0, entry.tokens - cut.tokens)
            if parse_thoughts(entry.message) and not parse_thoughts(cut.message):
                turns.add(entry.turn_id)
                thinking_tokens += freed
            else:
                uses += entry.message.role == "tool"
                tokens += freed
    applied: list[dict[str, Any]] = []
    if turns:
        applied.append(
            {"type": CLEAR_THINKING, "cleared_thinking_turns": len(turns), "cleared_input_tokens": thinking_tokens}
        )
    if uses:
        applied.append({"type": CLEAR_TOOL_USES, "cleared_tool_uses": uses, "cleared_input_tokens": tokens})
    return {"applied_edits": applied}
