#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints chains of headers, a line each, for the check that every header compiles alone:

    git ls-files 'include/*.hpp' | tests/header_chains.py include

A header includes, directly or not, all headers before it in its chain. So a file that includes a chain in this order checks
each of its headers as a file with this header alone would, and the headers below it are parsed once for the whole chain.
The chains are as few as possible (Dilworth's theorem).
"""

import functools
import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include "(.*?)"', re.MULTILINE)


def includes(folder, names):
    """{header: the headers of `names` that it includes itself, at its beginning: those at the end of some headers, with
    the definitions of what they declare, include these headers themselves}."""
    return {name: set(INCLUDE.findall((folder / name).read_text().partition("\nnamespace ")[0])) & names for name in names}


def chains(direct):
    """Disjoint chains of all headers: a maximum matching of headers with one that includes them."""

    @functools.cache
    def below(name):
        return frozenset(direct[name]).union(*map(below, direct[name]))

    order = sorted(direct, key=lambda name: (len(below(name)), name))
    above = {name: [other for other in order if name in below(other)] for name in order}
    lower = {}  # header -> the one before it in its chain

    def match(name, tried):
        for other in above[name]:
            if other not in tried:
                tried.add(other)
                if other not in lower or match(lower[other], tried):
                    lower[other] = name
                    return True
        return False

    for name in reversed(order):
        match(name, set())
    upper = {name: other for other, name in lower.items()}
    for name in order:
        if name not in lower:
            chain = [name]
            while chain[-1] in upper:
                chain.append(upper[chain[-1]])
            yield chain


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    names = {str(pathlib.Path(line).relative_to(folder)) for line in sys.stdin.read().split()}
    for chain in chains(includes(folder, names)):
        print(*chain)
