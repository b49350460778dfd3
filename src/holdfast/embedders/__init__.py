"""Embedders: whoever makes vectors of texts, over a network, on this machine, or in a program's own function.

`base` is the contract, `settings` what a configuration says, `opening` leads from there to an embedder. `endpoint` asks any
OpenAI-compatible embeddings endpoint, `minilm` computes here (`network` the model, `wordpiece` its tokenizer, `safetensors` the
file of its weights, `weights` where that is and how it gets there), and so does `e5` (`e5_package` says where its engine and weights
are), `given` is somebody's own function or object, `caching` remembers.
"""

from __future__ import annotations

from holdfast.embedders.base import Embedder, text_key
from holdfast.embedders.given import GivenEmbedder
from holdfast.embedders.opening import embedder_of
from holdfast.embedders.settings import EmbedderSettings

__all__ = ["Embedder", "EmbedderSettings", "GivenEmbedder", "embedder_of", "text_key"]
