"""Values of the log and of replies, and the comparison of a request with a log. This package is pure: it does no I/O.

items    the parts in which a reply arrives
align    which messages of a request are new, and what they replace
"""
