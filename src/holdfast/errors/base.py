"""The base of all errors."""

from __future__ import annotations


class HoldfastError(Exception):
    """Base of every error Holdfast raises on purpose.

    `code` is a stable machine-readable word, used as `error.code` on the wire.
    """

    code = "holdfast_error"
