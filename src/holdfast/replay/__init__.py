"""Replay: recorded sessions played through strategies, without a model, to measure the strategies.

For each recorded assistant message, the working set that the model would have received is built from the messages
before it. The recorded reply shows what the agent needed: *argument recall* is the share of the values in its tool
calls, of those that occur verbatim in earlier messages, that are still in the working set. *Bound recall* is stricter:
a value that first came from a tool result has to appear together with an argument of that call.

recordings  sessions from files                       specs         strategies, their keys and budgets
player      sessions played through a strategy        prompt_checks checks of a prompt's contents
summaries   summaries as the service makes them       scripted      a stand-in for the summarizing model
comparison  two strategies, session by session        plots         recall and cost by budget, as a picture
"""

from holdfast.replay.comparison import Comparison, PairedSessions, compare
from holdfast.replay.player import (
    CACHE_LEAST,
    CACHE_READ,
    CACHE_WRITE,
    SUMMARY_READ,
    SUMMARY_WRITTEN,
    UNLIMITED,
    PlayResult,
    Result,
    SessionResult,
    Tally,
    play,
)
from holdfast.replay.prompt_checks import has_orphan, has_task, list_values
from holdfast.replay.recordings import chain_sessions, read
from holdfast.replay.scripted import SCRIPTED, make_scripted_llm
from holdfast.replay.specs import DIGEST, NOBODY, Spec, parse_spec, parse_specs
from holdfast.replay.summaries import SummaryWriter

__all__ = [
    "CACHE_LEAST",
    "CACHE_READ",
    "CACHE_WRITE",
    "DIGEST",
    "NOBODY",
    "SCRIPTED",
    "SUMMARY_READ",
    "SUMMARY_WRITTEN",
    "UNLIMITED",
    "Comparison",
    "PairedSessions",
    "PlayResult",
    "Result",
    "SessionResult",
    "Spec",
    "SummaryWriter",
    "Tally",
    "chain_sessions",
    "compare",
    "has_orphan",
    "has_task",
    "list_values",
    "make_scripted_llm",
    "parse_spec",
    "parse_specs",
    "play",
    "read",
]
