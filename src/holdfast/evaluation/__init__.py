"""Evaluation: how well recall finds, in conversations with questions of which the evidence is known.

dataset    what a set consists of                    reading    sets out of files, in four forms
locomo     LoCoMo's and REALTALK's published forms   beam       BEAM's published form
finding    what a search is here                     library    the product's own search, over a set
direct     the ranking by itself, without a store    plain      BM25 and FTS5, to compare with
running    a set through a search, mode by mode      measures   recall, by turn and by session
unrelated  what questions get that have no answer         comparing  two modes, with intervals
prompt_contents   which evidence is in a prompt      prompt_sessions   prompts of a session in memory
"""

from holdfast.evaluation.comparison import Comparison, compare
from holdfast.evaluation.dataset import Dataset, Query, Sample, Turn
from holdfast.evaluation.direct import Direct
from holdfast.evaluation.evaluator import BASELINES, MODES, Evaluator, Mode
from holdfast.evaluation.library import Library
from holdfast.evaluation.measures import Figures, Outcome
from holdfast.evaluation.prompt_contents import PromptFigures, measure_prompts
from holdfast.evaluation.readers import read
from holdfast.evaluation.unrelated import Given, can_ask, count_unrelated, unrelated
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
    "Given",
    "Library",
    "Mode",
    "Outcome",
    "PromptFigures",
    "Query",
    "Sample",
    "Turn",
    "can_ask",
    "compare",
    "count_unrelated",
    "measure_prompts",
    "read",
    "unrelated",
]
