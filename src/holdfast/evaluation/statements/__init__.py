"""Which statements of a conversation are still in a prompt: conversations with labelled statements through strategies.

conversations   files, read and checked            matching   a statement found in a prompt
figures         shares by kind, depth, wording     prompts    what turns of the library send
"""

from holdfast.evaluation.prompt_sessions import Run
from holdfast.evaluation.statements.conversations import Conversation, Statement, read_conversations
from holdfast.evaluation.statements.figures import Figures, Finding, Prompt, Shares, Tally, find_asked, prompt_from
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
    "measure_statements",
    "normalize",
    "prompt_from",
    "read_conversations",
]
