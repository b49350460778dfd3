"""Compare Holdfast with its peers on one machine, in one run: `make bench`.

Each part (`window`, `turn`, `sessions`, …) is a module with a function `measure` that returns its tables; `__main__` lists them.
The other modules are shared. Only ratios within a run mean much, so no test asserts a time.
"""
