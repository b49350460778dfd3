"""The rules of a working set (DESIGN.md, section 4), checked on what was built, from the log alone.

Nothing here asks the code under test what it meant to do, except for the decisions it tells: what they say was sent is
worked out again from the log and compared with what was sent, message by message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from holdfast.context.build import PRIMING, Request, WorkingSet
from holdfast.context.cut import MIN_CUT, least
from holdfast.context.dialects import CLOSING, EMPTY, OPENING, SYSTEM_NOTE
from holdfast.context.explain import UNSEEN
from holdfast.context.units import LATE_RESULT, NO_RESULT
from holdfast.domain.messages import SYSTEM_ROLES, Message, Part, ToolCall
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from tests.unit.perspective_reference import Group, Seen, is_seen, told

GONE = {"evicted", "compacted"}
SENT = {"kept", "pinned", "anchored", "cut", "cleared"}
_MARKER = re.compile(
    r"\n\[… (\d+) of (\d+) characters cut, (?:message |load_artifact\(\"result-)(\d+)(?: of the session|\"\)) …\]\n"
)
_STUB = re.compile(r"\[original task: (.*)\]", re.DOTALL)
_MEDIA = "[a part of type {type} is left out here; it is in message {seq} of the session]"


def groups_of(entries: Sequence[Entry]) -> list[Group]:
    """The units of a live path: a message, or calls with all that tools said until each call had its result."""
    groups: list[Group] = []
    for entry in entries:
        waits = bool(groups) and results_of(groups[-1]) < len(groups[-1][0].message.tool_calls)
        waits = waits and entry.total - entry.tokens == groups[-1][-1].total
        if waits and entry.message.role == "tool":
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def visible_of(request: Request, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that the request's view gets to see."""
    groups = (group for group in groups_of(entries) if is_seen(request.policy.perspective, group))
    return [entry for group in groups for entry in group]


def results_of(group: Group) -> int:
    """How many of a unit's calls have their result."""
    return sum(entry.unit == group[0].seq for entry in group[1:])


def anchor_of(entries: Sequence[Entry]) -> Entry | None:
    """The first user message."""
    return next((entry for entry in entries if entry.message.role == "user"), None)


def current_of(entries: Sequence[Entry]) -> Entry | None:
    """The last user message."""
    return anchor_of(list(reversed(entries)))


def callable_behind(entries: Sequence[Entry]) -> bool:
    """Whether a model would be called now: there is something to answer, and no call is open."""
    groups = groups_of(entries)
    newest = groups[-1] if groups else []
    return bool(newest) and (
        newest[0].message.role != "assistant" or results_of(newest) == len(newest[0].message.tool_calls) > 0
    )


def called(request: Request, entries: Sequence[Entry]) -> bool:
    """Whether the request's agent would be called now: what another one has said is something to answer, too."""
    visible = visible_of(request, entries)
    newest = groups_of(visible)[-1:]
    others = any(told(request.policy.perspective, group) for group in newest)
    whole = all(results_of(group) == len(group[0].message.tool_calls) for group in newest)
    return (others and whole) or callable_behind(visible)


def conversation_of(request: Request, built: WorkingSet) -> list[Message]:
    """What is sent behind the system prompt, without what is recalled."""
    recalled = built.recalled.message if built.recalled else None
    return [message for message in built.messages[len(request.system) :] if message is not recalled]


# -- all of them ---------------------------------------------------------------


def check_rules(request: Request, built: WorkingSet, entries: Sequence[Entry]) -> None:
    """Every rule that one working set can show."""
    conversation = conversation_of(request, built)
    assert built.messages[: len(request.system)] == request.system, "the system prompt is first and whole"
    check_calls(conversation)
    check_dialect(request.dialect, built.messages[len(request.system) :])
    check_tokens(request, built, conversation)
    check_recalled(request, built, entries)
    decided = check_decisions(request, built, entries)
    visible = visible_of(request, entries)
    sent = check_sent(request, built, visible, decided)
    check_present(request, built, visible, decided)
    check_cut_counts(request, built, decided, sent)
    check_anchor(request, built, visible, decided, sent)


def check_refusal(request: Request, refused: BudgetTooSmall, entries: Sequence[Entry]) -> None:
    """A refusal says what is needed, and it is needed."""
    assert refused.needed > refused.budget
    overhead = _overhead(request)
    if refused.budget == request.input_budget and overhead >= request.input_budget:
        assert refused.needed == overhead + 1
        return
    limit = min(request.input_budget - overhead, request.policy.budget or request.input_budget)
    assert refused.budget == limit
    if request.dialect == "openai" and request.count.factor == 1.0:
        assert refused.needed <= max(limit + 1, _least(request, entries)), "asks for more than the smallest takes"


def _least(request: Request, entries: Sequence[Entry]) -> int:
    """At most what the smallest legal working set takes: everything for `none`, else what must stay, cut short."""
    visible = visible_of(request, entries)
    groups = groups_of(visible)
    if request.policy.name == "none":
        return sum(request.count.message(message) for group in groups for message in _told(request, group))
    must = [group for group in groups if _must_stay(request, group, visible)]
    return sum(
        min(request.count.message(message), MIN_CUT) if _only_text(message) else request.count.message(message)
        for group in must
        for message in _told(request, group)
    )


def _told(request: Request, group: Group) -> list[Message]:
    """Roughly what a unit's messages are when they are sent."""
    if (relayed := told(request.policy.perspective, group)) is not None:
        return [one.message for one in relayed]
    lacking = len(group[0].message.tool_calls) - results_of(group)
    plain = [entry.message if entry.unit == group[0].seq else _late_of(entry) for entry in group]
    if group[0].message.role == "tool":
        plain = [_late_of(group[0])]
    return plain + [Message(role="tool", content=NO_RESULT, tool_call_id="?")] * lacking


def _late_of(entry: Entry) -> Message:
    label = LATE_RESULT.format(id=entry.message.tool_call_id)
    return Message(role="user", content=label + entry.message.text)


def _only_text(message: Message) -> bool:
    return isinstance(message.content, str) and not message.tool_calls and not message.extra and message.name is None


def _must_stay(request: Request, group: Group, entries: Sequence[Entry]) -> bool:
    anchor, current = anchor_of(entries), current_of(entries)
    anchored = request.policy.name != "buffer_window" and anchor is not None and group[0].seq == anchor.seq
    asked = current is not None and group[0].seq == current.seq
    return anchored or asked or any(entry.pinned for entry in group) or group[-1].seq == entries[-1].seq


# -- rule 2: calls, results, roles -----------------------------------------------


def check_calls(conversation: Sequence[Message]) -> None:
    """Each call has exactly one result directly behind it, no result stands alone."""
    open_calls: list[str] = []
    for message in conversation:
        if message.role == "tool":
            assert message.tool_call_id in open_calls, "a result answers an open call"
            open_calls.remove(str(message.tool_call_id))
            continue
        assert not open_calls, "every call has its result directly behind it"
        open_calls = [call.id for call in message.tool_calls]
        assert len(set(open_calls)) == len(open_calls), "parallel calls have ids of their own"
    assert not open_calls, "the last calls have their results"


def check_dialect(dialect: str, conversation: Sequence[Message]) -> None:
    """Anthropic and Gemini: the user begins and ends, system messages only in front, no call id twice."""
    if dialect == "openai" or not conversation:
        return
    assert conversation[0].role == "user"
    assert conversation[-1].role in ("user", "tool")
    assert all(message.role not in SYSTEM_ROLES for message in conversation)
    ids = [call.id for message in conversation for call in message.tool_calls]
    assert len(set(ids)) == len(ids)


# -- rule 3: tokens --------------------------------------------------------------


def _overhead(request: Request) -> int:
    system = sum(map(request.count.message, request.system))
    return PRIMING + system + (request.count.tools(request.tools) if request.tools else 0)


def check_tokens(request: Request, built: WorkingSet, conversation: Sequence[Message]) -> None:
    """What is sent is counted by the request's own counter, and stays within both budgets."""
    counted = sum(map(request.count.message, conversation))
    assert built.tokens == counted
    assert built.total_tokens == counted + _overhead(request) + built.recalled_tokens
    assert built.tokens <= built.budget
    assert request.policy.budget is None or built.budget <= request.policy.budget
    assert built.total_tokens <= request.input_budget


# -- rule 7: what is recalled ------------------------------------------------------


def check_recalled(request: Request, built: WorkingSet, entries: Sequence[Entry]) -> None:
    """What is recalled is one message just before the current user message, in its own budget, and nothing that is there already."""
    sources = built.sources()
    assert len(sources) == len(built.messages)
    if built.recalled is None:
        assert built.recalled_tokens == 0
        return
    block = built.recalled.message
    at = [place for place, message in enumerate(built.messages) if message is block]
    current = current_of(visible_of(request, entries))
    assert len(at) == 1
    assert current is not None
    behind = sources[at[0] + 1]
    # A task that is cut to a stub stands for no entry.
    assert behind is None or behind.seq == current.seq
    assert sources[at[0]] is None
    assert block.role == "user"
    assert built.recalled_tokens == request.count.message(block)
    left = request.input_budget - _overhead(request)
    assert built.recalled_tokens <= min(sum(request.recall.budgets.values()), left // 4)
    said = [json.loads(line) for line in block.text.splitlines()[1:-1]]
    assert [one["text"] for one in said] == [item.text for item in built.recalled.items]
    if request.recall.block is None:
        whole = {entry.seq: entry.message.text for entry in sources if entry is not None}
        for item in built.recalled.items:
            same = (
                item.seq is not None and item.seq in whole and whole[item.seq] in [one.text for one in built.messages]
            )
            assert not same, "what is in the prompt as it was said is not recalled"


# -- rule 6: decisions -----------------------------------------------------------


def check_decisions(request: Request, built: WorkingSet, entries: Sequence[Entry]) -> dict[int, str]:
    """Runs in order, over each live entry once, with reasons and the log's tokens. Returns the decision by `seq`."""
    decided: dict[int, str] = {}
    place = -1
    for run in built.decisions():
        assert place < run.first <= run.last
        place = run.last
        covered = [entry for entry in entries if run.first <= entry.seq <= run.last]
        assert covered, "a run is about something"
        assert run.decision in GONE | SENT
        assert run.reason
        assert run.decision in ("cut", "cleared") or run.tokens == sum(entry.tokens for entry in covered)
        decided |= {entry.seq: run.decision for entry in covered}
    assert list(decided) == [entry.seq for entry in entries], "every live entry has a decision"
    gone = {decision for decision in decided.values() if decision in GONE}
    laid = built.window.summary
    unseen = _check_unseen(request, built, entries, decided)
    behind = {
        d for seq, d in decided.items() if d in GONE - unseen.get(seq, set()) and (laid is None or seq > laid.last)
    }
    assert behind <= {"compacted" if built.window.compaction else "evicted"}
    assert all(
        laid is None or d == "compacted" for seq, d in decided.items() if d in GONE - behind and seq not in unseen
    )
    assert gone <= GONE
    sent = sum(decision in SENT for decision in decided.values())
    assert len(built.decisions()) <= 2 * sent + 1, "telling does not grow with the log"
    sums: dict[str, int] = {}
    for run in built.decisions():
        sums[run.decision] = sums.get(run.decision, 0) + run.tokens
    if laid is None:
        assert built.kept() == sums, "the short form is the sum of the runs"
    for group in groups_of(entries):
        assert len({decided[entry.seq] in GONE for entry in group}) == 1, "a unit stays or goes as one"
        if group[0].seq in unseen:
            assert decided[group[0].seq] in GONE
        elif any(entry.pinned for entry in group):
            assert {decided[entry.seq] for entry in group} <= {"pinned", "anchored", "cut", "cleared"}
    return decided


def _check_unseen(
    request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str]
) -> dict[int, set[str]]:
    """What the view does not get to see is not sent, and told so behind the frontier. Returns the decisions by `seq`."""
    visible = {entry.seq for entry in visible_of(request, entries)}
    unseen = [entry.seq for entry in entries if entry.seq not in visible]
    frontier = built.window.units[0].first if built.window.units else 0
    for run in built.decisions():
        covered = [seq for seq in unseen if run.first <= seq <= run.last]
        if run.reason == UNSEEN:
            assert len(covered) == sum(run.first <= entry.seq <= run.last for entry in entries)
        assert not any(seq > frontier for seq in covered) or run.reason == UNSEEN
    return {seq: {decided[seq]} for seq in unseen}


def check_present(request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str]) -> None:
    """Rule 1: what must stay is sent; the newest unit, also `none` sends everything."""
    for group in groups_of(entries):
        if request.policy.name == "none" or _must_stay(request, group, entries):
            assert all(decided[entry.seq] in SENT for entry in group)
    if request.policy.name == "none":
        assert "cut" not in decided.values()
    results = [entry for entry in entries if entry.message.role == "tool" and entry.unit != entry.seq]
    newest = results[max(0, len(results) - request.policy.clearing.keep) :] if request.policy.clearing else results
    assert all(decided[entry.seq] != "cleared" for entry in newest), "the newest results stay"


# -- rules 1, 3 and 4: what was sent, message by message ---------------------------


def check_sent(
    request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str]
) -> dict[int, Message]:
    """What is sent is what the decisions say, in order, nothing doubled, altered or added. Returns messages by `seq`."""
    rest = conversation_of(request, built)
    sent: dict[int, Message] = {}
    compactions = 0
    groups = [group for group in groups_of(entries) if decided[group[0].seq] in SENT]
    anchor = anchor_of(entries)
    if groups and request.dialect != "openai" and rest[0].content == OPENING:
        rest.pop(0)
        assert rest[0].role == "assistant", "the opening is there only where the assistant began"
    for group in groups:
        while _is_compaction(built, rest[0]):
            rest.pop(0)
            compactions += 1
            if request.policy.anchored and anchor and anchor.seq not in sent:
                assert built.window.units[0].first <= anchor.seq, "a compaction stands behind the task"
        _check_group(request, group, rest, decided, sent, anchor if request.policy.anchored else None)
    while rest and _is_compaction(built, rest[0]):
        compactions += 1
        rest.pop(0)
    if rest and request.dialect != "openai" and groups[-1][0].message.role == "assistant":
        assert rest.pop(0).content == CLOSING
    assert not rest, "nothing is sent twice, and nothing that is not in the log"
    assert compactions == (built.window.compaction is not None) + (built.window.summary is not None)
    if groups:
        assert groups[-1] == groups_of(entries)[-1], "the newest unit is last"
    return sent


def _is_compaction(built: WorkingSet, message: Message) -> bool:
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
    """Take the messages of `group` from the front of `rest`: calls, results in their order, results lost, results late."""
    first = group[0]
    if (relayed := told(request.policy.perspective, group)) is not None:
        _check_relayed(request, relayed, rest, decided, sent)
        return
    calls = first.message.tool_calls
    results = [entry for entry in group[1:] if entry.unit == first.seq]
    late = [entry for entry in group[1:] if entry.unit != first.seq]
    head = rest.pop(0)
    plain = _plain_again(head, first, request.dialect)
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
        _check_same(request, _plain_again(rest.pop(0), entry, request.dialect), entry, decided, None)


def _check_relayed(
    request: Request, relayed: Sequence[Seen], rest: list[Message], decided: dict[int, str], sent: dict[int, Message]
) -> None:
    """What another agent said is told under a heading that names it, whole or cut, and no line of it looks like a heading."""
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
            assert message.text == one.heading + _cleared(request, one.tool, tokens, seq)
        elif decision == "cut":
            _check_cut_relayed(request, message, one)
        else:
            assert message == one.message, "what is not cut is sent as it is told"


def _check_lines(message: Message, one: Seen) -> None:
    """Lines that are not set in are headings that it had before it was cut, and marks of what is missing."""
    headings = [line.partition("]")[0] for line in one.message.text.splitlines() if line.startswith("[agent ")]
    for part in message.content if isinstance(message.content, tuple) else (Part("text", message.text),):
        for line in (part.text or "").splitlines():
            known = any(line.startswith(heading) or heading.startswith(line) for heading in headings)
            assert not line.strip() or line.startswith(("  ", "[… ", "[a part of type ", "[result of ")) or known, line


def _check_cut_relayed(request: Request, message: Message, one: Seen) -> None:
    if request.loads and one.tool:
        message = _named_by_place(message, one.entry.seq)
    if message != one.message:
        assert f"message {one.entry.seq} of the session" in _all_text(message), "a cut says where the whole is"
    for piece in _MARKER.split(message.text)[::4] if isinstance(message.content, str) else ():
        assert piece.removeprefix("  ").strip() in one.message.text, "what is left was there"


def _plain_again(sent: Message, entry: Entry, dialect: str) -> Message:
    """`sent` without what a dialect or a repair added to it in words, and with the log's own call ids."""
    message = entry.message
    if dialect != "openai" and message.role == "user" and sent.content == EMPTY and not message.text.strip():
        sent = sent.evolve(content=message.content)
    if message.role == "tool":
        assert sent.role == "user"
        label = LATE_RESULT.format(id=message.tool_call_id)
        return _unlabelled(sent, label, message).evolve(tool_call_id=message.tool_call_id)
    if message.role in SYSTEM_ROLES and dialect != "openai":
        assert sent.role == "user"
        return _unlabelled(sent, SYSTEM_NOTE, message)
    assert sent.role == message.role
    if not message.tool_calls:
        return sent
    pairs = zip(sent.tool_calls, message.tool_calls, strict=True)
    return sent.evolve(tool_calls=tuple(_call_again(ours, theirs, dialect) for ours, theirs in pairs))


def _call_again(sent: ToolCall, call: ToolCall, dialect: str) -> ToolCall:
    """`sent` with the id of `call`, and with its arguments where they only became the object that a dialect wants."""
    arguments = sent.arguments
    if dialect != "openai" and not isinstance(_json(call.arguments), dict):
        in_object = {"arguments": call.arguments} if call.arguments.strip() else {}
        arguments = call.arguments if _json(arguments) == in_object else arguments
    return ToolCall(call.id, sent.name, arguments, sent.type, sent.extra, sent.function_extra)


def _unlabelled(sent: Message, label: str, message: Message) -> Message:
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
    # A short task of several parts may be shorter as a stub with all of its words: then nothing is missing.
    all_there = anchor is not None and entry.seq == anchor.seq and entry.message.text in sent.text
    if request.loads and entry.message.role == "tool" and entry.unit != entry.seq:  # else it is told as a message
        sent = _named_by_place(sent, entry.seq)
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


def _named_by_place(sent: Message, seq: int) -> Message:
    """A cut result as it is without the tool that loads it: where that is told, it is in place of the message's number."""
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


def _cleared(request: Request, tool: str, tokens: int, seq: int) -> str:
    if request.loads:
        return f'[result of {tool} cleared: {tokens} tokens; load_artifact("result-{seq}") gives it back]'
    return f"[result of {tool} cleared: {tokens} tokens, message {seq} of the log]"


def _check_cleared(request: Request, sent: Message, entry: Entry) -> None:
    """A marker stands for a result: it says which tool, how large it was, and which entry holds it."""
    rule = request.policy.clearing
    assert rule is not None
    assert entry.message.role == "tool"
    assert not entry.pinned
    assert "look_up" not in rule.exclude_tools
    assert sent.text == _cleared(request, "look_up", entry.tokens, entry.seq)
    assert sent.evolve(content=entry.message.content) == entry.message


def _only_written_shorter(sent: Message, original: Message) -> bool:
    """Whether the same arguments are written with less white space, which may be enough."""
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
    """Whole, or head, marker with the right numbers, tail."""
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
    decoded = json.loads(sent)
    if isinstance(decoded, dict) and list(decoded) == ["arguments"]:
        _check_cut_text(decoded["arguments"], original, seq)
    else:
        _check_cut_value(decoded, json.loads(original), seq)


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


# -- rule 1: sizes of what was cut -------------------------------------------------


def check_cut_counts(request: Request, built: WorkingSet, decided: dict[int, str], sent: dict[int, Message]) -> None:
    """A cut message is told with what is sent of it, and none is cut far below the least."""
    for run in built.decisions():
        if run.decision != "cut":
            continue
        assert run.first == run.last
        message = sent[run.first]
        counted = request.count.message(message)
        if message.tool_calls and request.dialect != "openai":
            assert run.tokens <= counted, "other arguments may have become an object, which takes a few tokens more"
        elif message.role != "user" or not message.text.startswith((SYSTEM_NOTE, "[a tool result")):
            assert run.tokens == counted
        if _only_text(message) and _MARKER.search(message.text):
            # A log is folded with the room that is left beside what may be recalled, though a build may have that, too.
            folded = min(built.window.room.tokens, request.limit(request.overhead()))
            floor = least(folded) if request.policy.condense else MIN_CUT
            # Beside a heading, which is never cut, a word more or less may be much in a small room.
            assert run.tokens >= 0.9 * floor - (4 if message.text.startswith("[agent ") else 0)


def check_anchor(
    request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str], sent: dict[int, Message]
) -> None:
    """Behind the frontier the task takes at most a quarter of the room, or it is a marked stub."""
    anchor = anchor_of(entries)
    if anchor is None or request.policy.name in ("none", "buffer_window"):
        return
    before_frontier = anchor.seq < built.window.units[0].first
    if before_frontier and decided[anchor.seq] != "cut":
        assert request.count.message(sent[anchor.seq]) <= max(MIN_CUT, built.budget / 4)
    if decided[anchor.seq] == "cut":
        assert "[original task: " in sent[anchor.seq].text
