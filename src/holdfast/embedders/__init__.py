"""Embedders convert texts to vectors: over a network, on this machine, or with your own function.

base        the protocol of embedders
settings    the settings of an embedder
callable    wrap your own function or object; `embedder_of`, which makes every kind of embedder
endpoint    call an OpenAI-compatible embeddings endpoint
caching     cache vectors by text
minilm      the local model all-MiniLM-L6-v2; it uses `network` (NumPy) and `weights` (the files)

docs/libraries.md explains why the local model does not use ONNX Runtime.
"""

from __future__ import annotations

from holdfast.embedders.base import Embedder, make_text_key
from holdfast.embedders.callable import GivenEmbedder, embedder_of
from holdfast.embedders.settings import EmbedderSettings

__all__ = ["Embedder", "EmbedderSettings", "GivenEmbedder", "embedder_of", "make_text_key"]
