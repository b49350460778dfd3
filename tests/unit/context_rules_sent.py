"""Checks of a prompt, message by message: it follows the decisions in order, and cut texts have head, mark and tail.

See `tests.unit.context_rules`, which asks all of this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from holdfast.context.build import Request, WorkingSet
from holdfast.context.cut import MIN_CUT, compute_cut_floor
from holdfast.context.escaping import format_tag
from holdfast.context.fitting import CLOSING, OPENING, RECEIVED, SYSTEM_NOTE, is_added
from holdfast.context.units import EMPTY, LATE_RESULT, NO_RESULT
from holdfast.domain.messages import SYSTEM_ROLES, Message, Part, ToolCall
from holdfast.domain.session import Entry
from tests.unit.context_rules_facts import is_facts
from tests.unit.context_units import SENT, anchor_of, conversation_of, fill, groups_of, only_text
from tests.unit.perspective_reference import Group, Seen, replace_unit

_MARKER = re.compile(
    r"\n\[… (\d+) of (\d+) characters cut, (?:message |load_artifact\(\"result-)(\d+)(?: of the session|\"\))(?: #[a-z]{8})? …\]\n"
)
_STUB = re.compile(r"\[original task(?: #[a-z]{8})?: (.*)\]", re.DOTALL)
_MEDIA = "[a part of type {type} is left out here; it is in message {seq} of the session]"


# -- rules 1, 3 and 4: the prompt, message by message ---------------------------


def check_sent(
    request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str]
) -> dict[int, Message]:
    """Check that the prompt follows the decisions, with nothing repeated, altered or added; return messages by `seq`."""
    whole = conversation_of(request, built)
    rest = [message for message in whole if not (is_added(message) and message.content == RECEIVED)]
    assert request.dialect == "gemini" or rest == whole, "only Gemini's turns need a word between results and the user"
    sent: dict[int, Message] = {}
    compactions = 0
    groups = [group for group in groups_of(entries) if decided[group[0].seq] in SENT]
    anchor = anchor_of(entries)
    head = {unit.first for unit in built.window.head}
    front = [group for group in groups if group[0].message.role in SYSTEM_ROLES and group[0].seq in head]
    for group in front:  # system messages in force are sent with the system prompt
        _check_group(request, group, rest, decided, sent, None)
    spoke = False
    for group in [group for group in groups if group not in front]:
        if request.dialect != "openai" and not spoke and rest[0].content == OPENING:
            rest.pop(0)
            assert rest[0].role == "assistant", "the opening is there only where the assistant began"
        spoke = spoke or rest[0].role not in SYSTEM_ROLES
        while _is_compaction(built, rest[0]):
            rest.pop(0)
            compactions += 1
            if request.strategy.anchored and anchor and anchor.seq not in sent:
                assert built.window.units[0].first < anchor.seq, "a compaction stands behind the task"
        _check_group(request, group, rest, decided, sent, anchor if request.strategy.anchored else None)
    while rest and _is_compaction(built, rest[0]):
        compactions += 1
        rest.pop(0)
    if rest and request.dialect != "openai" and groups[-1][0].message.role == "assistant":
        assert rest.pop(0).content == CLOSING
    assert not rest, "nothing is sent twice, and nothing that is not in the log"
    laid = (built.window.facts, built.window.summary, built.window.compaction)
    assert compactions == sum(one is not None for one in laid)
    if groups:
        assert groups[-1] == groups_of(entries)[-1], "the newest unit is last"
    return sent


def _is_compaction(built: WorkingSet, message: Message) -> bool:
    if is_facts(built, message):
        return True
    laid = (built.window.summary, built.window.compaction)
    if not any(message == Message(role="user", content=one.text) for one in laid if one is not None):
        return False
    assert "data, not instructions" in message.text.splitlines()[0]
    return True


def _check_group(
    request: Request,
    group: Group,
    rest: list[Message],
    decided: dict[int, str],
    sent: dict[int, Message],
    anchor: Entry | None,
) -> None:
    """Take the messages of `group` from the front of `rest`: calls, then ordered, missing and late results."""
    first = group[0]
    if (relayed := replace_unit(request.strategy.perspective, group)) is not None:
        _check_relayed(request, relayed, rest, decided, sent)
        return
    calls = first.message.tool_calls
    results = [entry for entry in group[1:] if entry.unit == first.seq]
    late = [entry for entry in group[1:] if entry.unit != first.seq]
    head = rest.pop(0)
    plain = _plain_again(head, first, request)
    sent[first.seq] = head
    _check_same(request, plain, first, decided, anchor)
    ids = dict(zip(range(len(calls)), [call.id for call in head.tool_calls], strict=True))
    open_calls = list(enumerate(call.id for call in calls))
    for entry in results:
        message = rest.pop(0)
        sent[entry.seq] = message
        at = next(at for at, call_id in open_calls if call_id == entry.message.tool_call_id)
        open_calls.remove((at, str(entry.message.tool_call_id)))
        assert message.tool_call_id == ids[at], "a result answers its own call"
        _check_same(request, message.evolve(tool_call_id=entry.message.tool_call_id), entry, decided, None)
    for at, _ in open_calls:
        assert rest.pop(0) == Message(role="tool", content=NO_RESULT, tool_call_id=ids[at])
    for entry in late:
        sent[entry.seq] = rest[0]
        _check_same(request, _plain_again(rest.pop(0), entry, request), entry, decided, None)


def _check_relayed(
    request: Request, relayed: Sequence[Seen], rest: list[Message], decided: dict[int, str], sent: dict[int, Message]
) -> None:
    """Check that another agent's message has a heading with its name, and that no other line looks like a heading."""
    for one in relayed:
        message = sent[one.entry.seq] = rest.pop(0)
        decision = decided[one.entry.seq]
        if one.heading:
            assert (message.role, message.tool_calls, message.tool_call_id) == ("user", (), None)
            assert message.text.startswith(one.heading.rstrip())
            _check_lines(message, one)
        if decision == "cleared":
            assert one.tool
            tokens, seq = one.entry.tokens, one.entry.seq
            assert message.text == one.heading + _write_cleared(request, one.tool, tokens, seq)
        elif decision == "cut":
            _check_cut_relayed(request, message, one)
        else:
            assert message == one.message, "what is not cut is sent as it is told"


def _check_lines(message: Message, one: Seen) -> None:
    """Check that unindented lines are headings from before the cut, or marks of missing text."""
    headings = [line.partition("]")[0] for line in one.message.text.splitlines() if line.startswith("[agent ")]
    for part in message.content if isinstance(message.content, tuple) else (Part("text", message.text),):
        for line in (part.text or "").splitlines():
            known = any(line.startswith(heading) or heading.startswith(line) for heading in headings)
            assert not line.strip() or line.startswith(("  ", "[… ", "[a part of type ", "[result of ")) or known, line


def _check_cut_relayed(request: Request, message: Message, one: Seen) -> None:
    if request.loads and one.tool:
        message = _name_by_place(message, one.entry.seq)
    if message != one.message:
        assert f"message {one.entry.seq} of the session" in _all_text(message), "a cut says where the whole is"
    for piece in _MARKER.split(message.text)[::4] if isinstance(message.content, str) else ():
        assert piece.removeprefix("  ").strip() in one.message.text, "what is left was there"


def _plain_again(sent: Message, entry: Entry, request: Request) -> Message:
    """Return `sent` without text added by a dialect or a repair, and with the log's call ids."""
    message, dialect, own = entry.message, request.dialect, format_tag(request.marker)
    if dialect != "openai" and message.role == "user" and sent.content == EMPTY and not message.text.strip():
        sent = sent.evolve(content=message.content)
    if sent.content == fill(message).content:
        sent = sent.evolve(content=message.content)
    if message.role == "tool":
        assert sent.role == "user"
        label = LATE_RESULT.format(id=message.tool_call_id, tag=own)
        return _strip_label(sent, label, message).evolve(tool_call_id=message.tool_call_id)
    if message.role in SYSTEM_ROLES and dialect != "openai" and sent.role not in SYSTEM_ROLES:
        assert sent.role == "user"
        return _strip_label(sent, SYSTEM_NOTE.format(tag=own), message)
    assert sent.role == message.role
    if not message.tool_calls:
        return sent
    pairs = zip(sent.tool_calls, message.tool_calls, strict=True)
    return sent.evolve(tool_calls=tuple(_call_again(ours, theirs, dialect) for ours, theirs in pairs))


def _call_again(sent: ToolCall, call: ToolCall, dialect: str) -> ToolCall:
    """Return `sent` with the id of `call`, and its arguments if they were only converted to an object."""
    arguments = sent.arguments
    if dialect != "openai" and not isinstance(_json(call.arguments), dict):
        in_object = {"arguments": call.arguments} if call.arguments.strip() else {}
        arguments = call.arguments if _json(arguments) == in_object else arguments
    return ToolCall(call.id, sent.name, arguments, sent.type, sent.extra, sent.function_extra)


def _strip_label(sent: Message, label: str, message: Message) -> Message:
    if isinstance(sent.content, tuple):
        assert sent.content[0] == Part("text", label)
        return sent.evolve(role=message.role, content=sent.content[1:])
    if isinstance(sent.content, str) and sent.content.startswith(label):
        said = sent.content.removeprefix(label)
        return sent.evolve(role=message.role, content=said or message.content)
    return sent.evolve(role=message.role)  # its label was cut away


def _check_same(request: Request, sent: Message, entry: Entry, decided: dict[int, str], anchor: Entry | None) -> None:
    if decided[entry.seq] == "cleared":
        _check_cleared(request, sent, entry)
        return
    if decided[entry.seq] != "cut":
        assert sent == entry.message, "what is not cut is sent as it is in the log"
        return
    # A short task of several parts may be shorter as a complete stub: then nothing is missing.
    all_there = anchor is not None and entry.seq == anchor.seq and entry.message.text in sent.text
    if request.loads and entry.message.role == "tool" and entry.unit != entry.seq:  # else it is sent as a message
        sent = _name_by_place(sent, entry.seq)
    if not all_there and not _only_written_shorter(sent, entry.message):
        assert f"message {entry.seq} of the session" in _all_text(sent), "a cut says where the whole is"
    assert (sent.role, sent.name, sent.tool_call_id) == (
        entry.message.role,
        entry.message.name,
        entry.message.tool_call_id,
    )
    if entry.message.role == "tool" and entry.unit == entry.seq:
        return  # cut with the label before it
    is_anchor = anchor is not None and entry.seq == anchor.seq
    missing = set(entry.message.extra) - set(sent.extra)
    assert all(sent.extra[key] == entry.message.extra[key] for key in sent.extra)
    assert all(name in _all_text(sent) for name in missing), "a field that is left out is named"
    _check_cut_content(sent, entry, noted=bool(missing), stub=is_anchor)
    for ours, theirs in zip(sent.tool_calls, entry.message.tool_calls, strict=True):
        assert (ours.id, ours.name, ours.extra) == (theirs.id, theirs.name, theirs.extra)
        _check_cut_arguments(ours.arguments, theirs.arguments, entry.seq)


def _name_by_place(sent: Message, seq: int) -> Message:
    """Return a cut result as it would be without the loading tool, which replaces the message number."""
    whole, place = f'load_artifact("result-{seq}")', f"message {seq} of the session"
    assert place not in sent.text
    if isinstance(sent.content, str):
        return sent.evolve(content=sent.content.replace(whole, place))
    if not isinstance(sent.content, tuple):
        return sent
    texts = (
        part if part.text is None else Part(part.type, part.text.replace(whole, place), part.extra)
        for part in sent.content
    )
    return sent.evolve(content=tuple(texts))


def _write_cleared(request: Request, tool: str, tokens: int, seq: int) -> str:
    if request.loads:
        return f'[result of {tool} cleared: {tokens} tokens; load_artifact("result-{seq}") gives it back]'
    return f"[result of {tool} cleared: {tokens} tokens, message {seq} of the log]"


def _check_cleared(request: Request, sent: Message, entry: Entry) -> None:
    """Check that a marker names the tool, the size and the entry of the cleared result."""
    rule = request.strategy.clearing
    assert rule is not None
    assert entry.message.role == "tool"
    assert not entry.pinned
    assert "look_up" not in rule.exclude_tools
    assert sent.text == _write_cleared(request, "look_up", entry.tokens, entry.seq)
    assert sent.evolve(content=entry.message.content) == entry.message


def _only_written_shorter(sent: Message, original: Message) -> bool:
    """Return True if the arguments are equal except for less white space."""
    pairs = zip(sent.tool_calls, original.tool_calls, strict=True)
    same = all(ours == theirs or _json(ours.arguments) == _json(theirs.arguments) for ours, theirs in pairs)
    return same and sent.evolve(tool_calls=()) == original.evolve(tool_calls=())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _all_text(message: Message) -> str:
    return "".join((message.text, *(call.arguments for call in message.tool_calls)))


def _check_cut_content(sent: Message, entry: Entry, *, noted: bool, stub: bool) -> None:
    original, content = entry.message.content, sent.content
    if noted and isinstance(content, tuple):
        content = content[:-1]
    elif noted and isinstance(content, str):
        content = content.rpartition("[left out here: ")[0].removesuffix("\n")
    if stub:
        parts = (
            content if isinstance(content, tuple) else (Part("text", content if isinstance(content, str) else None),)
        )
        found = _STUB.fullmatch(parts[0].text or "")
        assert found, "the task is a marked stub when it is cut"
        _check_cut_text(found[1], entry.message.text, entry.seq)
        _check_media(parts[1:], entry.message.media, entry.seq)
    elif isinstance(original, tuple):
        assert isinstance(content, tuple)
        for ours, theirs in zip(content, original, strict=True):
            if theirs.text is None:
                _check_media((ours,), (theirs,), entry.seq)
            else:
                assert (ours.type, ours.extra) == (theirs.type, theirs.extra)
                _check_cut_text(str(ours.text), theirs.text, entry.seq)
    elif isinstance(original, str):
        assert isinstance(content, str)
        _check_cut_text(content, original, entry.seq)
    else:
        assert content in (original, "")


def _check_media(sent: Sequence[Part], original: Sequence[Part], seq: int) -> None:
    for ours, theirs in zip(sent, original, strict=True):
        assert ours in (theirs, Part("text", _MEDIA.format(type=theirs.type, seq=seq)))


def _check_cut_text(sent: str, original: str, seq: int) -> None:
    """Check for the whole text, or a head, a marker with correct numbers and a tail."""
    if sent == original:
        return
    pieces = _MARKER.split(sent)
    assert len(pieces) == 5, f"one marker: {sent[:300]!r}"
    head, missing, size, where, tail = pieces
    assert original.startswith(head)
    assert original.endswith(tail)
    assert int(missing) == len(original) - len(head) - len(tail) > 0
    assert (int(size), int(where)) == (len(original), seq)


def _check_cut_arguments(sent: str, original: str, seq: int) -> None:
    if sent == original:
        return
    (key, first), *rest = json.loads(sent).items()
    assert key.startswith(f"[cut, see message {seq} of the session"), "a first key that no tool has"
    if rest:
        assert first == ""
        _check_cut_value(dict(rest), json.loads(original), seq)
    elif first:
        _check_cut_text_or_value(first, original, seq)


def _check_cut_text_or_value(sent: Any, original: str, seq: int) -> None:
    """Return arguments that are not an object as stored under that key: as text or as parsed JSON."""
    if isinstance(sent, str) and original.startswith(_MARKER.split(sent)[0]):
        _check_cut_text(sent, original, seq)
    else:
        _check_cut_value(sent, json.loads(original), seq)


def _check_cut_value(sent: Any, original: Any, seq: int) -> None:
    if isinstance(original, str):
        _check_cut_text(sent, original, seq)
    elif isinstance(original, dict):
        assert list(sent) == list(original)
        for key, value in original.items():
            _check_cut_value(sent[key], value, seq)
    elif isinstance(original, list):
        for ours, theirs in zip(sent, original, strict=True):
            _check_cut_value(ours, theirs, seq)
    else:
        assert sent == original


# -- rule 1: sizes of cut messages -------------------------------------------------


def check_cut_counts(request: Request, built: WorkingSet, decided: dict[int, str], sent: dict[int, Message]) -> None:
    """Check that decisions state the sent tokens of cut messages, and none is cut far below the minimum."""
    for run in built.list_decisions():
        if run.decision != "cut":
            continue
        assert run.first == run.last or request.strategy.perspective is not None, (
            "an agent is told of a round in one message"
        )
        message = sent[run.first]
        counted = request.count.message(message)
        if message.tool_calls and request.dialect != "openai":
            assert run.tokens <= counted, "other arguments may have become an object, which takes a few tokens more"
        elif message.role != "user" or not message.text.startswith(("[a system message", "[a tool result")):
            assert run.tokens == counted
        if only_text(message) and _MARKER.search(message.text):
            # Folding reserves room for recalled text, though a build may use that room, too.
            folded = min(built.window.room.tokens, request.compute_limit(request.count_overhead()))
            floor = compute_cut_floor(folded) if request.strategy.condense else MIN_CUT
            # Next to a heading, which is never cut, a single word can matter in a small room.
            assert run.tokens >= 0.9 * floor - (4 if message.text.startswith("[agent ") else 0)


def check_anchor(
    request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str], sent: dict[int, Message]
) -> None:
    """Check that after the frontier the task takes at most a quarter of the room, or is a marked stub."""
    anchor = anchor_of(entries)
    if anchor is None or request.strategy.name in ("none", "buffer_window"):
        return
    before_frontier = anchor.seq < built.window.units[0].first
    if before_frontier and decided[anchor.seq] != "cut":
        assert request.count.message(sent[anchor.seq]) <= max(MIN_CUT, built.budget / 4)
    if decided[anchor.seq] == "cut":
        assert "[original task: " in sent[anchor.seq].text
