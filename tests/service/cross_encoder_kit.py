"""A cross-encoder of a few hundred bytes, written as ONNX by hand, so that tests need neither weights nor the `onnx` package.

Its score is the sum of the weights of the pieces of the text. The question, which has type 0, and padding do not count.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "kelp": 4, "soup": 5, "salt": 6, "harbour": 7}
WEIGHTS = (1000.0, 0.0, 500.0, 0.0, 1.0, 2.0, -4.0, 8.0)
"""Of each piece; those of padding and of the first piece are large, so that a test sees them if they count."""
_FLOAT, _INT64 = 1, 7


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _node(kind: str, inputs: Sequence[str], output: str, attributes: bytes = b"") -> bytes:
    named = b"".join(_bytes(1, name) for name in inputs)
    return _bytes(1, named + _bytes(2, output) + _bytes(4, kind) + attributes)


def _integer(name: str, value: int) -> bytes:
    """Build an integer attribute of a node."""
    return _bytes(5, _bytes(1, name) + _number(3, value) + _number(20, 2))


def _tensor(name: str, kind: int, shape: Sequence[int], raw: bytes) -> bytes:
    return _bytes(5, b"".join(_number(1, size) for size in shape) + _number(2, kind) + _bytes(8, name) + _bytes(9, raw))


def _value(field: int, name: str, kind: int, dimensions: Sequence[str]) -> bytes:
    shape = _bytes(2, b"".join(_bytes(1, _bytes(2, size)) for size in dimensions))
    return _bytes(field, _bytes(1, name) + _bytes(2, _bytes(1, _number(1, kind) + shape)))


def model(inputs: Sequence[str] = ("input_ids", "attention_mask", "token_type_ids"), *, labels: int = 1) -> bytes:
    """Build the model as an ONNX file.

    Args:
        inputs: Names of its inputs; the first one is the ids.
        labels: Numbers in its output for each text; 0 means an output with one dimension.
    """
    nodes = _node("Gather", ["weights", inputs[0]], "of_pieces")
    last = "of_pieces"
    for at, name in enumerate(inputs[1:]):
        nodes += _node("Cast", [name], f"factor{at}", _integer("to", _FLOAT))
        nodes += _node("Mul", [last, f"factor{at}"], f"counted{at}")
        last = f"counted{at}"
    if labels > 1:
        nodes += _node("ReduceSum", [last, "axis"], "sum", _integer("keepdims", 1))
        nodes += _node("Concat", ["sum"] * labels, "logits", _integer("axis", 1))
    else:
        nodes += _node("ReduceSum", [last, "axis"], "logits", _integer("keepdims", labels))
    graph = nodes + _bytes(2, "tiny")
    graph += _tensor("weights", _FLOAT, [len(WEIGHTS)], struct.pack(f"<{len(WEIGHTS)}f", *WEIGHTS))
    graph += _tensor("axis", _INT64, [1], struct.pack("<q", 1))
    graph += b"".join(_value(11, name, _INT64, ["batch", "pieces"]) for name in inputs)
    graph += _value(12, "logits", _FLOAT, ["batch", "labels"][: 2 if labels else 1])
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13))


def write_tokenizer(path: Path, *, padded: bool = False) -> None:
    """Write a `tokenizer.json` that splits at white space and joins pairs as BERT does."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    if padded:  # as published ones are: to a fixed length
        tokenizer.enable_padding(length=64)
        tokenizer.enable_truncation(64)
    tokenizer.save(str(path))


def write_folder(folder: Path, *, nested: bool = False, padded: bool = False, data: bytes | None = None) -> Path:
    """Write a folder with the model and its tokenizer."""
    target = folder / "onnx" if nested else folder
    target.mkdir(parents=True, exist_ok=True)
    (target / "model.onnx").write_bytes(model() if data is None else data)
    write_tokenizer(folder / "tokenizer.json", padded=padded)
    return folder
