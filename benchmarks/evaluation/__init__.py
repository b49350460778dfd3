"""Measure the quality of search and of prompts: `python -m benchmarks recall`, `evidence` and `statements`.

commands    the commands                              tables      prints their figures
dataset     classes of datasets, and of searches      readers     reads datasets from files in four formats
locomo      the formats of LoCoMo and REALTALK        beam        the format of BEAM
direct      the ranking alone, without a store        library     search of a dataset with `Holdfast.search`
evaluator   runs a dataset's questions in a mode,     plain       BM25 and FTS5 as baselines
            and compares two modes                    measures    recall by turn and by session
unrelated   results for questions without an answer   statements  labelled statements in prompts
prompt_contents   evidence in the default prompt      prompt_sessions   sessions whose prompts are examined
"""
