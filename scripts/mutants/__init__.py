"""Mutation testing: small faults are put into functions, one at a time, and the tests that run there are to fail.

`python -m scripts.mutants` (`make mutants`); docs/testing.md says how to read what it prints.
"""
