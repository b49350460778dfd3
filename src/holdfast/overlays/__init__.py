"""Derive data from logs between calls: summaries, the importance of messages, and caches of views and of passages.

compactor       decides when summaries are made            session_cache   caches sessions and their views in memory
summary_draft   prepares and completes one summary         scoring         rates the importance of messages after turns
summarizers     models and functions that write summaries  scorers         models and functions that rate messages
passage_tables  analyses evicted messages for recall
"""
