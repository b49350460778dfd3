"""What is measured on: a made-up session of any length, the same in every run.

Of six messages one is a call of a tool and one its JSON result; a message has 65 tokens on average. The views of the
session, which take long to work out for the longest ones, are worked out once a run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from benchmarks.timing import clock, report
from holdfast.agents import Llm, Responder, Roster, offline
from holdfast.context.build import Request, build
from holdfast.context.settings import ContextSettings, parse
from holdfast.context.strategies import make_strategy
from holdfast.context.view import ViewState, encode_state
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, NewEntry, SessionRef, Tail
from holdfast.holdfast import Holdfast
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sessions import NewSession
from holdfast.tokens import STORED

SYSTEM = Message(role="system", content="You help customers with their orders. Be brief, and say what you looked up.")
STRATEGIES = ("digest", "token_window")
LENGTHS = (100, 1_000, 10_000, 100_000)
TEXT = """
the order was sent on Monday and should arrive at your address today if nothing comes between please look up
where it is now because I need it before the weekend or else cancel it and pay the money back to my card thanks
"""
WORDS = TEXT.split()
REACH = 3_000
"""Newest messages that views are worked out from: of 100,000 it would take minutes, for a state of about that size."""
LLM: Llm = msgspec.structs.replace(offline(), context_window=2_000_000)
"""Never called here; its window is wide enough for every budget."""


def make_message(at: int) -> Message:
    """The message at place `at`: in rounds of question, call, result, answer, thanks, answer."""
    kind = at % 6
    if kind == 1:
        return Message(role="assistant", content=None, tool_calls=(_make_call(at),))
    if kind == 2:
        return Message(role="tool", content=_make_result(at), tool_call_id=f"call_{at - 1}")
    return Message(role="user" if kind in (0, 4) else "assistant", content=make_text(at))


def make_text(at: int) -> str:
    """A text that no other message has."""
    said = " ".join(WORDS[(at * 7 + place) % len(WORDS)] for place in range(48))
    return f"About order W{100_000 + at}: {said}, {said[:40]}."


def _make_call(at: int) -> ToolCall:
    return ToolCall(id=f"call_{at}", name="get_order", arguments=json.dumps({"order_id": f"W{100_000 + at - 1}"}))


def _make_result(at: int) -> str:
    order = {"order_id": f"W{100_000 + at - 2}", "status": "shipped", "total": f"{at % 900}.50", "city": WORDS[at % 40]}
    items = [{"sku": f"SKU-{at * 3 + item}", "price": at % 70 + item, "name": WORDS[item]} for item in range(2)]
    return json.dumps({**order, "items": items})


@lru_cache(maxsize=1)
def _make_entries(length: int) -> list[NewEntry]:
    messages = [make_message(at) for at in range(length)]
    return [NewEntry(message=item, tokens=STORED.message(item), timestamp=0) for item in messages]


class SampleSession:
    """The session up to the longest length that this run measures, and what has been worked out of it.

    Args:
        longest: messages.
    """

    def __init__(self, longest: int) -> None:
        self.new: Sequence[NewEntry] = _make_entries(longest)
        self.entries, self._tail = extend(Tail(), self.new)
        self._states: dict[tuple[str, int, int], ViewState] = {}

    def compute_tail(self, length: int) -> Tail:
        """The log's tail after `length` messages."""
        return self._tail if length == len(self.new) else extend(Tail(), self.new[:length])[1]

    def build_state(self, strategy: str, budget: int, length: int) -> ViewState:
        """The view of the first `length` messages, worked out once a run, of the newest `REACH` and the task."""
        key = (strategy, budget, length)
        if key not in self._states:
            started = clock()
            request = make_request(strategy, budget)
            entries = (
                self.entries[:length] if length <= REACH else self.entries[:1] + self.entries[length - REACH : length]
            )
            self._states[key] = build(request, None, (), entries).state
            if (took := clock() - started) > 1:
                report(
                    f"(the {strategy} view of {length:,} entries at {budget:,} tokens took {took:.1f} s to work out)"
                )
        return self._states[key]

    def select_rows(self, state: ViewState, length: int) -> tuple[list[Entry], list[Entry]]:
        """What a store would read for a build: what the view keeps, and the log from its frontier on."""
        return [self.entries[seq] for seq in state.keep], self.entries[state.frontier : length]

    async def store_session(
        self, hf: Holdfast, session_id: str, length: int, *, view: Responder | None = None
    ) -> SessionRef:
        """Make a session of `length` messages, indexed; with its view in the store if its voice is given, else as imported."""
        new = NewSession(id=session_id, user_id="bench", timestamp=hf.clock(), system_messages=(SYSTEM,))
        appended = await hf.store.replace(new, self.new[:length])
        ref = appended.session.ref
        if view is not None:
            key = view.view_key
            state = self.build_state(view.context.strategy, view.context.options["budget"], length)
            saved = SavedView(state.frontier, encode_state(state), state.keep)
            await hf.store.append(ref, Append(timestamp=hf.clock(), views={key: saved}))
        await wait_for_index(hf)
        return ref


async def wait_for_index(hf: Holdfast) -> None:
    """Wait until the index has what was written: else it would be at work while somebody else is measured."""
    if hf.index is not None:
        await hf.index.settled()


def make_request(strategy: str, budget: int) -> Request:
    """What the working sets of a table are built for."""
    settings = make_settings(strategy, budget)
    return Request(strategy=make_strategy(settings), count=STORED, input_budget=LLM.budget().input, system=(SYSTEM,))


def make_settings(strategy: str, budget: int) -> ContextSettings:
    """A strategy with a budget."""
    return parse({"strategy": strategy, "budget": budget}, where="")


def make_roster(strategy: str, budget: int, llm: Llm = LLM) -> Roster:
    """One model, which nobody calls, and one strategy."""
    return Roster({"default": llm}, context=make_settings(strategy, budget))
