"""Measure which labelled statements of a conversation are still in the prompts that each strategy builds.

conversations   reads and checks files             matching   detects a statement in a prompt
figures         computes the results               prompts    builds the prompts of a conversation
"""

from holdfast.evaluation.prompt_sessions import Run
from holdfast.evaluation.statements.conversations import Conversation, Statement, read_conversations
from holdfast.evaluation.statements.figures import Figures, Finding, Prompt, Shares, Tally, find_asked, make_prompt
from holdfast.evaluation.statements.matching import Matcher, normalize
from holdfast.evaluation.statements.prompts import measure_statements

__all__ = [
    "Conversation",
    "Figures",
    "Finding",
    "Matcher",
    "Prompt",
    "Run",
    "Shares",
    "Statement",
    "Tally",
    "find_asked",
    "make_prompt",
    "measure_statements",
    "normalize",
    "read_conversations",
]
