"""Evaluate search and recall on datasets: conversations, and questions whose evidence is known.

dataset     classes of datasets, and of searches      readers     reads datasets from files in four formats
locomo      the formats of LoCoMo and REALTALK        beam        the format of BEAM
direct      the ranking alone, without a store        library     search of a dataset with `Holdfast.search`
evaluator   runs a dataset's questions in a mode,     plain       BM25 and FTS5 as baselines
            and compares two modes                    measures    recall by turn and by session
unrelated   results for questions without an answer
prompt_contents   evidence in the default prompt      prompt_sessions   sessions whose prompts are examined
"""

from holdfast.evaluation.dataset import Dataset, Query, Sample, Turn
from holdfast.evaluation.direct import Direct
from holdfast.evaluation.evaluator import BASELINES, MODES, Comparison, Evaluator, Mode, compare
from holdfast.evaluation.library import Library
from holdfast.evaluation.measures import Figures, Outcome
from holdfast.evaluation.prompt_contents import PromptFigures, measure_prompts
from holdfast.evaluation.readers import read
from holdfast.evaluation.unrelated import UnrelatedFigures, can_ask, count_unrelated, measure_unrelated
from holdfast.recall.scoring import WEIGHTS

__all__ = [
    "BASELINES",
    "MODES",
    "WEIGHTS",
    "Comparison",
    "Dataset",
    "Direct",
    "Evaluator",
    "Figures",
    "Library",
    "Mode",
    "Outcome",
    "PromptFigures",
    "Query",
    "Sample",
    "Turn",
    "UnrelatedFigures",
    "can_ask",
    "compare",
    "count_unrelated",
    "measure_prompts",
    "measure_unrelated",
    "read",
]
