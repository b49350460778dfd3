"""Every index is held to the contract."""

from holdfast.testing.contract.index import *  # noqa: F403  # as anybody's own index is
