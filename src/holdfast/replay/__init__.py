"""Replay recorded sessions through strategies, without calling the agent's model, to measure the strategies.

For each recorded assistant message, the prompt that the model would have received (the *working set*) is built from the messages before it.
The recorded reply shows which values the agent needed:

- *Argument recall* considers the values in the reply's tool calls that occur verbatim in earlier messages, and is the fraction of these
  values that the prompt still contains.
- *Bound recall* is stricter. If a value first occurred in a tool result, an argument of that tool call must be in the same part of the
  prompt.

recordings  reads sessions from files                 specs         parses strategies with keys and budgets
player      replays sessions through a strategy       prompt_checks examines the contents of a prompt
summaries   makes summaries as the service does
comparison  compares two strategies
"""

from holdfast.domain.activity import CACHE_LEAST, CACHE_READ, CACHE_WRITE, SUMMARY_READ, SUMMARY_WRITTEN
from holdfast.replay.player import (
    UNLIMITED,
    Comparison,
    PairedSessions,
    PlayResult,
    Result,
    SessionResult,
    Tally,
    compare,
    play,
)
from holdfast.replay.prompt_checks import has_orphan, has_task, list_values
from holdfast.replay.recordings import chain_sessions, read
from holdfast.replay.specs import DIGEST, NOBODY, Run, Spec, parse_spec, parse_specs, parse_tokens, plan_runs
from holdfast.replay.summaries import SummaryWriter

__all__ = [
    "CACHE_LEAST",
    "CACHE_READ",
    "CACHE_WRITE",
    "DIGEST",
    "NOBODY",
    "SUMMARY_READ",
    "SUMMARY_WRITTEN",
    "UNLIMITED",
    "Comparison",
    "PairedSessions",
    "PlayResult",
    "Result",
    "Run",
    "SessionResult",
    "Spec",
    "SummaryWriter",
    "Tally",
    "chain_sessions",
    "compare",
    "has_orphan",
    "has_task",
    "list_values",
    "parse_spec",
    "parse_specs",
    "parse_tokens",
    "plan_runs",
    "play",
    "read",
]
