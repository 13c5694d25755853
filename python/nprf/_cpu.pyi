# SPDX-License-Identifier: MIT

level: int
