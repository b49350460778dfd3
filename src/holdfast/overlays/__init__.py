"""Derive data from the logs of sessions between model calls: summaries, ratings of messages, and caches.

A *log* is the stored list of a session's messages and notes. Each of them is an *entry* with a number, its `seq`. An entry is *live* if
it is part of the current conversation: no edit has replaced it. A *view* is the state of the prompt builder for one session, one agent
and one model. Its *frontier* is the `seq` from which all live entries are in the prompt verbatim. A *compaction* is a text that
replaces older messages in the prompt: a *digest* is made without a model, a *summary* is written by a model or a function.

compactor       decides when summaries are made            session_cache   caches sessions and their views in memory
summary_draft   prepares and completes one summary         scoring         rates the importance of messages after turns
summarizers     models and functions that write summaries  scorers         models and functions that rate messages
session_postings  keeps the words of sessions, for recall
"""
