"""Rerankers read a question and a text together and score how well the text answers the question.

base           the protocol
settings       which reranker, and how it is called
callable       your own function or object, the factory, and the time limit of all rerankers
endpoint       any HTTP reranker
cross_encoder  an ONNX model on this machine
"""

from __future__ import annotations

from holdfast.rerankers.base import Reranker
from holdfast.rerankers.callable import BoundedReranker, make_reranker
from holdfast.rerankers.settings import RerankSettings, parse_rerank_settings

__all__ = ["BoundedReranker", "RerankSettings", "Reranker", "make_reranker", "parse_rerank_settings"]
