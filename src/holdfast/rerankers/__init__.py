"""Rerankers read a question and a text together and score how well the text answers the question.

base           the protocol of rerankers
settings       the settings of a reranker
callable       wrap your own function or object; `make_reranker`, which makes every kind; the time limit of all rerankers
endpoint       call a reranker over HTTP
cross_encoder  run an ONNX model on this machine
"""

from __future__ import annotations

from holdfast.rerankers.base import Reranker
from holdfast.rerankers.callable import BoundedReranker, make_reranker
from holdfast.rerankers.settings import RerankSettings, parse_rerank_settings

__all__ = ["BoundedReranker", "RerankSettings", "Reranker", "make_reranker", "parse_rerank_settings"]
