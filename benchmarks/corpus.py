"""A generated session of any length, the same in every run.

Of every six messages, one is a tool call and one is its JSON result. A message has 65 tokens on average. Views of long sessions take
long to build, so each is built once per run.
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
"""Newest messages that views are built from. Building from 100,000 messages would take minutes and give a state of about the same size."""
LLM: Llm = msgspec.structs.replace(offline(), context_window=2_000_000)
"""A model that is never called; its context window is large enough for every budget."""


def make_message(at: int) -> Message:
    """Return message number `at`, in rounds of question, tool call, result, answer, thanks, answer."""
    kind = at % 6
    if kind == 1:
        return Message(role="assistant", content=None, tool_calls=(_make_call(at),))
    if kind == 2:
        return Message(role="tool", content=_make_result(at), tool_call_id=f"call_{at - 1}")
    return Message(role="user" if kind in (0, 4) else "assistant", content=make_text(at))


def make_text(at: int) -> str:
    """Return the text of message number `at`; no two messages share a text."""
    words = " ".join(WORDS[(at * 7 + place) % len(WORDS)] for place in range(48))
    return f"About order W{100_000 + at}: {words}, {words[:40]}."


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
    """The generated session and its views.

    Args:
        longest: the number of messages; shorter sessions are its beginning.
    """

    def __init__(self, longest: int) -> None:
        self.new: Sequence[NewEntry] = _make_entries(longest)
        self.entries, self._tail = extend(Tail(), self.new)
        self._states: dict[tuple[str, int, int], ViewState] = {}

    def compute_tail(self, length: int) -> Tail:
        """Return the tail of the log after `length` messages."""
        return self._tail if length == len(self.new) else extend(Tail(), self.new[:length])[1]

    def build_state(self, strategy: str, budget: int, length: int) -> ViewState:
        """Return the view of the first `length` messages, built from the task and the newest `REACH` messages, once per run."""
        key = (strategy, budget, length)
        if key not in self._states:
            started = clock()
            request = make_request(strategy, budget)
            entries = (
                self.entries[:length] if length <= REACH else self.entries[:1] + self.entries[length - REACH : length]
            )
            self._states[key] = build(request, None, (), entries).state
            if (took := clock() - started) > 1:
                report(f"(the {strategy} view of {length:,} entries at {budget:,} tokens took {took:.1f} s to build)")
        return self._states[key]

    def select_rows(self, state: ViewState, length: int) -> tuple[list[Entry], list[Entry]]:
        """Return the entries that a store reads for a build: those the view keeps, and the log after its frontier."""
        return [self.entries[seq] for seq in state.keep], self.entries[state.frontier : length]

    async def store_session(
        self, hf: Holdfast, session_id: str, length: int, *, view: Responder | None = None
    ) -> SessionRef:
        """Store and index a session of `length` messages. Store its view too if its responder is given; otherwise it looks imported."""
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
    """Wait until the index is up to date, so that it does not work while other candidates are measured."""
    if hf.index is not None:
        await hf.index.settled()


def make_request(strategy: str, budget: int) -> Request:
    """Return the request that working sets of a table are built for."""
    settings = make_settings(strategy, budget)
    return Request(
        strategy=make_strategy(settings), count=STORED, input_budget=LLM.compute_budget().input, system=(SYSTEM,)
    )


def make_settings(strategy: str, budget: int) -> ContextSettings:
    """Return the settings of a strategy with a budget."""
    return parse({"strategy": strategy, "budget": budget}, where="")


def make_roster(strategy: str, budget: int, llm: Llm = LLM) -> Roster:
    """Return a roster of one model, which is never called, and one strategy."""
    return Roster({"default": llm}, context=make_settings(strategy, budget))
