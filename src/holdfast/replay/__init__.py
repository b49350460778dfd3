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
