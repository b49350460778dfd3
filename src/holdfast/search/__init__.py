"""Search a user's conversations: options, ranking, results and pages.

The *log* is the stored list of a session's messages and notes. Each of them is an *entry* with a number, its `seq`. A *candidate*
is an entry that the index finds; a *hit* is a candidate with a score.
"""
