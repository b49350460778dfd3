"""Errors, in one form for all drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.errors import HoldfastError


class Refused(Exception):  # it is what the user gets, not a fault of the test
    """The product refused what was asked for.

    Attributes:
        code: stable code of the error; None: the command line, which prints only words.
        param: the argument or field that is wrong; None: it is not said.
        status: HTTP status; None: the driver has none.
        body: decoded body of the answer, if there was one.
    """

    def __init__(self, message: str, *, code: str | None, param: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.param, self.status = code, param, status
        self.body: Any = None


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn errors of the library into `Refused`."""
    try:
        yield
    except HoldfastError as exc:
        raise Refused(str(exc), code=exc.code, param=getattr(exc, "param", None)) from exc


@contextmanager
def refused(code: str, words: str = "", *, param: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect that the block is refused with this code and with a message that contains `words`.

    The command line prints no code, so give `words` if a test runs through it. Errors of the library count too, for tests that use
    `hf.native`.
    """
    with pytest.raises((Refused, HoldfastError)) as caught:
        yield caught
    error: Any = caught.value
    assert error.code in (code, None), error
    assert words in str(error)
    if param is not None and error.code is not None:
        assert getattr(error, "param", None) == param, error
