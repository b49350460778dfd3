"""Evaluation: how well recall finds, in conversations with questions of which the evidence is known.

dataset    what a set consists of            reading    files, in two forms          locomo    LoCoMo's published form
measures   recall, by turn and session       running    a set through a search, mode by mode
finding    what a search is here: `library` imports the set and asks the product, `direct` is the ranking by itself, and
plain      BM25 as it comes, to compare with      unrelated      what questions get that nobody answers
"""

from holdfast.evaluation.dataset import Dataset, Query, Sample, Turn
from holdfast.evaluation.direct import Direct
from holdfast.evaluation.library import Library
from holdfast.evaluation.measures import Figures, Outcome
from holdfast.evaluation.reading import read
from holdfast.evaluation.running import BASELINE, MODES, Evaluator, Mode
from holdfast.evaluation.unrelated import Given, unrelated

__all__ = [
    "BASELINE",
    "MODES",
    "Dataset",
    "Direct",
    "Evaluator",
    "Figures",
    "Given",
    "Library",
    "Mode",
    "Outcome",
    "Query",
    "Sample",
    "Turn",
    "read",
    "unrelated",
]
