"""Fixtures of these tests: the subjects are those of the kernel tests."""

from tests.kernels.conftest import device

__all__ = ["device"]
