"""Embedders convert texts to vectors: over a network, on this machine, or with a program's own function.

base       the protocol                                   settings  which embedder, and how it is called
callable   your own function or object, and the factory   endpoint  any OpenAI-compatible embeddings endpoint
caching    a cache of vectors by text
minilm     all-MiniLM-L6-v2: network (NumPy, and the file of its weights), wordpiece (tokenizer), weights (installed files)
e5         multilingual-e5-small: e5_package (installed engine and weights)

docs/decisions/libraries.md explains why the local models do not use ONNX Runtime.
"""

from __future__ import annotations

from holdfast.embedders.base import Embedder, make_text_key
from holdfast.embedders.callable import GivenEmbedder, embedder_of
from holdfast.embedders.settings import EmbedderSettings

__all__ = ["Embedder", "EmbedderSettings", "GivenEmbedder", "embedder_of", "make_text_key"]
