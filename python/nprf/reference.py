# SPDX-License-Identifier: MIT
"""Exact softmax attention, and the formula of kernelized attention as two plain loops."""

from ._attention import kernelized_attention, softmax_attention

__all__ = ["kernelized_attention", "softmax_attention"]
