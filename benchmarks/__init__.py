"""Measurements, run with `make bench`. Ratios on one machine in one run; no test asserts a time."""
