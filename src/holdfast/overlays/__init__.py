"""Data derived from logs between calls: compactions, scoring, and the caches of views and passages.

compactor    when summaries are made, and by which model   session_cache   the view cache: sessions in memory
summary_draft  the input and the result of one summary     scoring         importance of messages, rated after turns
summarizers  models and functions that write summaries     scorers         models and functions that rate messages
passage_tables  evicted messages, analysed for recall
"""
