"""One program per memory system, which `benchmarks.compared` runs in the environment of that system.

The programs import the standard library, `benchmarks.systems.turns` and their own system only.
"""
