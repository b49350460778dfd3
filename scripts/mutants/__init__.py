"""Mutation testing: puts small faults into functions, one at a time, and checks that a test fails.

Run it with `python -m scripts.mutants` or `make mutants`; docs/testing.md explains the output.
"""
