"""Checks of the rules of a working set, based only on the log.

Nothing here asks the code under test what it meant to do, except for the decisions it tells: what they say was sent is
worked out again from the log and compared with what was sent, message by message (`tests.unit.context_rules_sent`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import dropwhile

from holdfast.context.build import PRIMING, Request, WorkingSet
from holdfast.context.cut import MIN_CUT
from holdfast.context.units import LATE_RESULT, NO_RESULT
from holdfast.domain.messages import SYSTEM_ROLES, Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.limits import LEFT_OUT_EXPLAINED
from tests.unit.context_rules_facts import check_facts
from tests.unit.context_rules_sent import check_anchor, check_cut_counts, check_sent
from tests.unit.context_units import (
    GONE,
    SENT,
    anchor_of,
    conversation_of,
    current_of,
    fill,
    groups_of,
    in_force_of,
    is_mute,
    only_text,
    results_of,
    visible_of,
)
from tests.unit.perspective_reference import Group, replace_unit

# -- all rules ---------------------------------------------------------------


def check_rules(request: Request, built: WorkingSet, entries: Sequence[Entry]) -> None:
    """Check every rule that applies to a single working set."""
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
    check_facts(request, built, visible, decided)
    check_cut_counts(request, built, decided, sent)
    check_anchor(request, built, visible, decided, sent)


def check_refusal(request: Request, refused: BudgetTooSmall, entries: Sequence[Entry]) -> None:
    """Check that the error states the needed tokens, and that they are needed."""
    assert refused.needed > refused.budget
    overhead = _overhead(request)
    if refused.budget == request.input_budget and overhead >= request.input_budget:
        assert refused.needed == overhead + 1
        return
    limit = min(request.input_budget - overhead, request.strategy.budget or request.input_budget)
    assert refused.budget == limit
    if request.dialect == "openai" and request.count.factor == 1.0:
        assert refused.needed <= max(limit + 1, _least(request, entries)), "asks for more than the smallest takes"


def _least(request: Request, entries: Sequence[Entry]) -> int:
    """Return an upper bound of the smallest valid working set: everything for `none`, else the required messages, cut."""
    visible = visible_of(request, entries)
    groups = groups_of(visible)
    if request.strategy.name == "none":
        return sum(request.count.message(message) for group in groups for message in _list_sent(request, group))
    in_force = in_force_of(visible)
    must = [group for group in groups if _must_stay(request, group, visible, in_force)]
    return sum(
        min(request.count.message(message), MIN_CUT) if only_text(message) else request.count.message(message)
        for group in must
        for message in _list_sent(request, group)
    )


def _list_sent(request: Request, group: Group) -> list[Message]:
    """Return approximately the messages of a unit as they are sent."""
    if (relayed := replace_unit(request.strategy.perspective, group)) is not None:
        return [one.message for one in relayed]
    lacking = len(group[0].message.tool_calls) - results_of(group)
    plain = [fill(entry.message) if entry.unit == group[0].seq else _late_of(entry) for entry in group]
    if group[0].message.role == "tool":
        plain = [_late_of(group[0])]
    return plain + [Message(role="tool", content=NO_RESULT, tool_call_id="?")] * lacking


def _late_of(entry: Entry) -> Message:
    label = LATE_RESULT.format(id=entry.message.tool_call_id, tag="")
    return Message(role="user", content=label + entry.message.text)


def _must_stay(request: Request, group: Group, entries: Sequence[Entry], in_force: set[int]) -> bool:
    anchor, current = anchor_of(entries), current_of(entries)
    anchored = request.strategy.name != "buffer_window" and anchor is not None and group[0].seq == anchor.seq
    asked = current is not None and group[0].seq == current.seq
    if group[0].seq in in_force:
        return True
    return anchored or asked or any(entry.pinned for entry in group) or group[-1].seq == entries[-1].seq


# -- rule 2: calls, results, roles -----------------------------------------------


def check_calls(conversation: Sequence[Message]) -> None:
    """Check that each call has exactly one result directly after it, and no result is orphaned."""
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
    """Check Anthropic and Gemini: user first and last, system messages only at the start, unique call ids."""
    conversation = list(dropwhile(lambda message: message.role in SYSTEM_ROLES, conversation))
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
    """Check that the prompt is counted by the request's counter and stays within both budgets."""
    counted = sum(map(request.count.message, conversation))
    assert built.tokens == counted
    assert built.total_tokens == counted + _overhead(request) + built.recalled_tokens
    assert built.tokens <= built.budget
    assert request.strategy.budget is None or built.budget <= request.strategy.budget
    assert built.total_tokens <= request.input_budget


# -- rule 7: recalled text ------------------------------------------------------


def check_recalled(request: Request, built: WorkingSet, entries: Sequence[Entry]) -> None:
    """Check that recalled text is one message before the current one, within its budget, without repetitions."""
    sources = built.list_sources()
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
    # A task that is cut to a stub represents no entry.
    assert behind is None or behind.seq == current.seq
    assert sources[at[0]] is None
    assert block.role == "user"
    assert built.recalled_tokens == request.count.message(block)
    left = request.input_budget - _overhead(request)
    apart = min(sum(request.recall.budgets.values()), left // 4)
    own = max(0, built.budget - built.tokens) if request.strategy.recall else 0
    assert built.recalled_tokens <= apart + own
    assert own or all(item.kind != "session" for item in built.recalled.items)
    if not apart:
        assert built.tokens + built.recalled_tokens <= built.budget, (
            "what was said in the session has no room of its own"
        )
    others = [json.loads(line)["text"] for line in block.text.splitlines() if line.startswith("{")]
    assert others == [item.text for item in built.recalled.items if item.kind != "session"]
    lines = sum(line.startswith("- ") for line in block.text.splitlines())
    assert lines == sum(item.kind == "session" for item in built.recalled.items)
    if request.recall.block is None:
        shortened = {
            seq for seq, cut in built.window.cuts.items() if not cut.whole
        }  # of a call possibly only the arguments
        whole = {one.seq: one.message.text for one in sources if one is not None and one.seq not in shortened}
        for item in built.recalled.items:
            same = (
                item.seq is not None and item.seq in whole and whole[item.seq] in [one.text for one in built.messages]
            )
            assert not same, "what is in the prompt as it was said is not recalled"


# -- rule 6: decisions -----------------------------------------------------------


def check_decisions(request: Request, built: WorkingSet, entries: Sequence[Entry]) -> dict[int, str]:
    """Check that runs are ordered, cover each live entry once, and have reasons and tokens; return decisions by `seq`."""
    decided: dict[int, str] = {}
    place = -1
    for run in built.list_decisions():
        assert place < run.first <= run.last
        place = run.last
        covered = [entry for entry in entries if run.first <= entry.seq <= run.last]
        assert covered, "a run is about something"
        assert run.decision in GONE | SENT
        assert run.reason
        assert run.decision in ("cut", "cleared") or run.tokens == sum(entry.tokens for entry in covered)
        decided |= {entry.seq: run.decision for entry in covered}
    assert list(decided) == [entry.seq for entry in entries], "every live entry has a decision"
    laid = built.window.summary
    unseen = _check_unseen(request, built, entries, decided)
    behind = {
        d for seq, d in decided.items() if d in GONE - unseen.get(seq, set()) and (laid is None or seq > laid.last)
    }
    assert behind <= {"compacted" if built.window.compaction else "evicted"}
    assert all(
        laid is None or d == "compacted" for seq, d in decided.items() if d in GONE - behind and seq not in unseen
    )
    sent = sum(decision in SENT for decision in decided.values())
    mute = sum(run.cause == "empty" for run in built.list_decisions())
    ends = int(laid is not None)  # a summary may end between two evicted messages
    assert len(built.list_decisions()) <= 2 * (sent + mute) + 1 + ends, "telling does not grow with the log"
    assert mute <= LEFT_OUT_EXPLAINED
    sums: dict[str, int] = {}
    for run in built.list_decisions():
        sums[run.decision] = sums.get(run.decision, 0) + run.tokens
    if laid is None:
        assert built.sum_decisions() == sums, "the short form is the sum of the runs"
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
    """Check that invisible entries are not sent and have a reason; return the decisions by `seq`."""
    visible = {entry.seq for entry in visible_of(request, entries)}
    unseen = [entry.seq for entry in entries if entry.seq not in visible]
    frontier = built.window.units[0].first if built.window.units else 0
    mute = {group[0].seq for group in groups_of(entries) if is_mute(request, group)}
    for run in built.list_decisions():
        covered = [seq for seq in unseen if run.first <= seq <= run.last]
        if run.cause in ("branch", "empty"):
            assert len(covered) == sum(run.first <= entry.seq <= run.last for entry in entries)
        assert not any(seq > frontier for seq in covered) or run.cause in ("branch", "empty")
        assert run.cause != "empty" or mute.issuperset(covered), "what is left out so has no content"
    return {seq: {decided[seq]} for seq in unseen}


def check_present(request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str]) -> None:
    """Check rule 1: required messages and the newest unit are sent, and `none` sends everything."""
    in_force = in_force_of(entries)
    for group in groups_of(entries):
        if request.strategy.name == "none" or _must_stay(request, group, entries, in_force):
            assert all(decided[entry.seq] in SENT for entry in group)
    if request.strategy.name == "none":
        assert "cut" not in decided.values()
    results = [entry for entry in entries if entry.message.role == "tool" and entry.unit != entry.seq]
    newest = results[max(0, len(results) - request.strategy.clearing.keep) :] if request.strategy.clearing else results
    assert all(decided[entry.seq] != "cleared" for entry in newest), "the newest results stay"
