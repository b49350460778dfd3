"""Measurements beside peers, run with `make bench`. Ratios on one machine in one run; no test asserts a time.

One file a table: `window`, `turn`, `sessions`, `replay`, `gateway`, `stored`. The others are what they share.
"""
