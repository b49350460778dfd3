"""Replay: recorded sessions played through policies, no model needed, and what that says about the policies.

For each recorded assistant message the working set that the model would have got is built from what came before it.
What the recorded agent then did tells what it needed: the *argument recall* is the share of the values it used in its
tool calls, of those that occur verbatim in earlier messages, that are still in the working set. The *bound recall* asks
more: a value that first came from a tool result has to stand with what it belongs to.

reading   sessions out of files             specs      what is played: a strategy, its keys, a budget
playing   sessions through a policy         judging    what is looked for in a prompt
summaries as the service makes them         scripted   a stand-in for the model that writes them
comparing two strategies, session by session            plotting   recall and cost against the budget, as a picture
"""

from holdfast.replay.comparison import Comparison, Paired, compare
from holdfast.replay.player import (
    CACHE_LEAST,
    CACHE_READ,
    CACHE_WRITE,
    SUMMARY_READ,
    SUMMARY_WRITTEN,
    UNLIMITED,
    Played,
    Result,
    SessionResult,
    Tally,
    play,
)
from holdfast.replay.prompt_checks import has_orphan, has_task, values_of
from holdfast.replay.recordings import chained, read
from holdfast.replay.scripted import SCRIPTED, stand_in
from holdfast.replay.specs import DIGEST, NOBODY, Spec, spec_of, specs_of
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
    "Paired",
    "Played",
    "Result",
    "SessionResult",
    "Spec",
    "SummaryWriter",
    "Tally",
    "chained",
    "compare",
    "has_orphan",
    "has_task",
    "play",
    "read",
    "spec_of",
    "specs_of",
    "stand_in",
    "values_of",
]
