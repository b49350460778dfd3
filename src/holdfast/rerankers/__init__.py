"""Rerankers: models that read a question and a text together and score how well the text answers.

`base` is the contract, `settings` what a configuration says, `opening` leads from there to a reranker. `endpoint` asks any HTTP
reranker (`answers` reads what it says), `cross_encoder` computes on this machine, `given` is a program's own function or object.
`bounded` holds all of them to a time.
"""

from __future__ import annotations

from holdfast.rerankers.base import Reranker
from holdfast.rerankers.bounded import BoundedReranker
from holdfast.rerankers.opening import make_reranker
from holdfast.rerankers.settings import RerankSettings, rerank_settings

__all__ = ["BoundedReranker", "RerankSettings", "Reranker", "make_reranker", "rerank_settings"]
