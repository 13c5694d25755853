# SPDX-License-Identifier: MIT
"""The experiments of Luo et al. 2021 in miniature. See README.md."""
