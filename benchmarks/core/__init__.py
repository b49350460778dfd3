"""A prototype of the prompt's core: stored analysis, postings, steps and recall as pure functions. It is measured by `python -m benchmarks core`."""
