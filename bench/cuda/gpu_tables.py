# SPDX-License-Identifier: MIT
"""The tables and the picture's points of gpu_bench.py, and its targets."""

import math

NS = [1024, 2048, 4096, 8192, 16384, 32768, 40960, 65536, 131072, 262144]
ENGINES = ["automatic", "direct", "banded", "fused", "cufft"]
FFTS = ENGINES[3:]
D = 64

# (name, fields of our case, the rival or None for the fastest, {n: minimum of the rival's time / our time})
BF16, FLOAT = {"storage": "bf16"}, {"storage": "float"}
TARGETS = [
    ("T5, bf16", {**BF16, "position": "t5", "m": 32}, None, {2048: 1, 4096: 2, 65536: 25}),
    ("T5, float", {**FLOAT, "position": "t5", "m": 32}, None, {4096: 1, 65536: 8}),
    ("dense, bf16", {**BF16, "position": "dense", "m": 16}, None, {n: 1.2 for n in NS if n >= 2048}),
    (
        "dense, float, fused",
        {**FLOAT, "position": "dense", "m": 16, "engine": "fused"},
        None,
        {16384: 1, 65536: 2, 131072: 3.5},
    ),
    ("dense, float", {**FLOAT, "position": "dense", "m": 32}, "exact, fp32", {4096: 3, 16384: 10}),
    (
        "dense, float, fused",
        {**FLOAT, "position": "dense", "m": 32, "engine": "fused"},
        "cufft",
        {4096: 2.5, 8192: 2.5, 16384: 2.5, 65536: 1.5},
    ),
    (
        "T5, bf16, 16 heads x 4",
        {**BF16, "position": "t5", "m": 32, "batch": 4, "heads": 16},
        None,
        {4096: 3, 65536: 30},
    ),
]
MOST_MIB = 256  # MiB in addition to inputs and output, for n = 131072, m = 32
PASSES = {"forward": "", "both": ", both passes", "both16": ", both passes, gradients on tensor cores"}


def key(case):
    return tuple(
        case[field] for field in ("pass", "storage", "position", "direction", "batch", "heads", "n", "m", "engine")
    )


def rival_key(case):
    """Rivals compute gradients in one way."""
    passes = "forward" if case["pass"] == "forward" else "both"
    return (passes, *(case[field] for field in ("direction", "batch", "heads", "n")))


def table(head, rows):
    widths = [max(len(str(row[c])) for row in [head, *rows]) for c in range(len(head))]
    line = lambda row: "| " + " | ".join(str(x).ljust(w) for x, w in zip(row, widths)) + " |"
    print("\n".join(["", line(head), "|" + "---|" * len(head), *map(line, rows)]))


def text(found):
    return f"{found['ms']:.4g}" if "ms" in found and "refused" not in found else "-"


def print_ours(bench):
    groups = {}
    for found in bench.ours.values():
        case = {**found, "engine": found["asked"]}
        groups.setdefault(key(case)[:-1], {})[found["asked"]] = found
    rows, remarks = [], {}
    for group, engines in groups.items():
        passes, storage, position, direction, batch, heads, n, m = group
        first = engines["automatic"]
        fastest = min(bench.rival_times(first).items(), key=lambda x: x[1], default=None)
        good = "ms" in first and "refused" not in first
        rows.append(
            [
                f"{batch} x {heads}",
                n,
                m,
                position,
                storage,
                direction + PASSES[passes],
            ]
            + [f"{text(first)} {first.get('engine') if good else ''}"]
            + [text(engines.get(engine, {})) for engine in ENGINES[1:]]
            + [f"{first['error']:.1g}" if "error" in first else "-"]
            + [f"{(first['workspace_bytes'] + first['table_bytes']) / 2**20:.1f}" if good else "-"]
            + ([fastest[0], f"{fastest[1]:.4g}", f"{fastest[1] / first['ms']:.2f}"] if fastest and good else ["-"] * 3)
        )
        for engine, found in engines.items():
            if "refused" in found:
                remarks.setdefault(f"{engine}: {found['refused']}", []).append(f"{position} {storage} {n}")
    print("\nnprf, milliseconds; error: of the automatic engine; ratio: the fastest rival's time / ours")
    table(
        ["batch x heads", "n", "m", "position", "storage", "direction", "automatic", *ENGINES[1:]]
        + ["error", "MiB", "fastest rival", "ms", "ratio"],
        rows,
    )
    print_remarks(remarks)


def print_decoding(bench):
    microseconds = lambda found: f"{1000 * found['ms']:.3g}" if "ms" in found and "refused" not in found else "-"
    shape = lambda found: f"{found['batch']} x {found['heads']}"
    ours = [found for found in bench.decoding if "rival" not in found]
    if not ours:
        return
    print("\nThe next token, microseconds; nprf after any number of tokens")
    rows = [
        [
            shape(found),
            found["storage"],
            found["position"],
            found["map"] + (f", near {found['near']}" if found["near"] else ""),
            microseconds(found),
            found["refused"] if "refused" in found else f"{found['bytes'] / 2**20:.1f}",
        ]
        for found in ours
    ]
    table(["batch x heads", "storage", "position", "features", "us", "MiB of states"], rows)
    theirs = [found for found in bench.decoding if "rival" in found]
    if not theirs:
        return
    ns = sorted({found["n"] for found in theirs})
    lines = {}
    for found in theirs:
        lines.setdefault((shape(found), found["rival"]), {})[found["n"]] = found
    cells = [[*names, *(microseconds(line.get(n, {})) for n in ns)] for names, line in lines.items()]
    print("\nPyTorch with a cache of all keys and values in bfloat16, microseconds after n - 1 tokens")
    table(["batch x heads", "", *(f"n = {n}" for n in ns)], cells)
    remarks = {}
    for found in theirs:
        if "failed" in found:
            remarks.setdefault(found["failed"], []).append(f"{found['rival']} {found['n']}")
    print_remarks(remarks)


def print_rivals(bench):
    shapes, columns, remarks = {}, {}, {}
    for (*shape, name, m), found in bench.theirs.items():
        column = name if m is None else f"{name}, m = {m}"
        columns[column] = None
        shapes.setdefault(tuple(shape), {})[column] = found
        if "failed" in found:
            remarks.setdefault(f"{column}: {found['failed']}", []).append(str(found["n"]))
    if not shapes:
        return
    print("\nPyTorch, milliseconds, and MiB in addition to inputs")
    rows = []
    for (passes, direction, batch, heads, n), found in shapes.items():
        cells = [found.get(column, {}) for column in columns]
        rows.append(
            [f"{batch} x {heads}", n, direction + PASSES[passes]]
            + [f"{x['ms']:.4g} ({x['bytes'] / 2**20:.0f})" if "ms" in x else "-" for x in cells]
        )
    table(["batch x heads", "n", "direction", *columns], rows)
    print_remarks(remarks)


def print_remarks(remarks):
    if remarks:
        print()
    for why, where in remarks.items():
        print(f"- {why} ({', '.join(where[:6])}{', ..' if len(where) > 6 else ''})")


def compare(bench):
    """The rows of the table of targets."""
    usual = {"pass": "forward", "direction": "bidirectional", "batch": 1, "heads": 1, "engine": "automatic"}
    rows = []
    for what, fields, rival, at_least in TARGETS:
        for n, ratio in at_least.items():
            case = {**usual, **fields, "n": n}
            ours = bench.ours.get(key(case), {"refused": "not measured"})
            times = bench.rival_times(case)
            if rival == "cufft":
                other = bench.ours.get(key({**case, "engine": "cufft"}), {})
                times = {"cufft": other["ms"]} if "ms" in other and "refused" not in other else {}
            elif rival:
                times = {name: ms for name, ms in times.items() if name == rival}
            row = {"ours": what, "m": case["m"], "n": n, "at_least": ratio}
            if "refused" in ours or not times:
                rows.append({**row, "left_out": ours.get("refused", "no rival was measured")})
                continue
            name, ms = min(times.items(), key=lambda x: x[1])
            rows.append(
                {
                    **row,
                    "engine": ours["engine"],
                    "ms": ours["ms"],
                    "rival": name,
                    "rival_ms": ms,
                    "ratio": ms / ours["ms"],
                }
            )
    return rows


def print_targets(rows, bench):
    print("\nTargets: a rival's time / ours")
    mark = lambda row: "met" if row["ratio"] >= row["at_least"] else "**missed**"
    table(
        ["ours", "m", "n", "engine", "ms", "rival", "rival ms", "ratio", "at least", ""],
        [
            [row["ours"], row["m"], row["n"]]
            + (
                ["-"] * 5 + [row["at_least"], "left out: " + row["left_out"]]
                if "left_out" in row
                else [row["engine"], f"{row['ms']:.4g}", row["rival"], f"{row['rival_ms']:.4g}"]
                + [f"{row['ratio']:.2f}", row["at_least"], mark(row)]
            )
            for row in rows
        ],
    )
    for found in bench.ours.values():
        if (found["n"], found["m"], found["asked"], found["direction"]) == (
            131072,
            32,
            "automatic",
            "bidirectional",
        ) and "ms" in found:
            mib = (found["workspace_bytes"] + found["table_bytes"]) / 2**20
            print(
                f"- {found['position']}, {found['storage']}, n = 131072, m = 32: {mib:.0f} MiB besides inputs and "
                f"output, at most {MOST_MIB}: {'met' if mib <= MOST_MIB else '**missed**'}"
            )


def work(case):
    """The operations that the planner's model counts: flops, or bytes for FFTs in global memory."""
    n, r, columns = case["n"], case["m"], D + 1
    z = case["batch"] * case["heads"]
    lengths = sorted([2**k for k in range(10, 21)] + [3 * 2**k for k in range(10, 19)])
    N = next(length for length in lengths if length >= n)
    return (
        z
        * {
            "direct": 2 * n * n * (r + columns) * (0.5 if case["direction"] == "causal" else 1),
            "banded": 2 * n * (257 + 3 * 64) * (r + columns) + 8 * n * r * columns,
            "fused": (20 * N * math.log2(N) if N <= 16384 else 40 * 2 * N) * r * columns / 2,
            "cufft": 10 * 8 * 2 * n * r * columns / 2,
        }[case["asked"]]
    )


def print_rates(bench, ceilings):
    """Prints the rate of each engine by the planner's model, and the device's measured ceilings."""
    print(
        f"\nThis device, per second: {ceilings['copy_bytes'] / 1e12:.2f} TB copied (read and written), "
        f"{ceilings['multiply_adds'] / 1e12:.1f} Tflop of float multiply-adds, "
        f"{ceilings['matrix_products'] / 1e12:.0f} Tflop of bfloat16 products (mma.sync)"
    )
    print("\nEngines by the planner's model: Tflop per second; TB per second for cufft and, beyond 16384 tokens, fused")
    rates, ns = {}, []
    for found in bench.ours.values():
        if "refused" in found or (found["heads"], found["direction"], found["pass"]) != (1, "bidirectional", "forward"):
            continue
        if found["asked"] == "automatic" or (found["asked"] == "banded") != (found["position"] == "t5"):
            continue
        row = (found["asked"], found["storage"], found["m"])
        rates.setdefault(row, {})[found["n"]] = work(found) / found["ms"] / 1e9
        ns = sorted({*ns, found["n"]})
    table(
        ["engine", "storage", "m", *ns],
        [[*row, *(f"{of[n]:.3g}" if n in of else "-" for n in ns)] for row, of in sorted(rates.items())],
    )


def curves(bench):
    """{name: [(n, ms)]} for the picture: forward, one head, m = 32."""
    found = {}
    for x in bench.ours.values():
        if (x["pass"], x["asked"], x["direction"], x["heads"], x["m"]) == (
            "forward",
            "automatic",
            "bidirectional",
            1,
            32,
        ) and "refused" not in x:
            found.setdefault(f"{x['position']}_{x['storage']}", []).append((x["n"], x["ms"]))
    names = {"exact, fp32": "exact", "SDPA, bf16": "sdpa", "FlexAttention, bf16": "flex", "paper, fp32": "paper"}
    for x in bench.theirs.values():
        if (
            (x["pass"], x["direction"], x["heads"]) == ("forward", "bidirectional", 1)
            and x["m"] in (None, 32)
            and "ms" in x
        ):
            found.setdefault(names[x["rival"]], []).append((x["n"], x["ms"]))
    return found


def write_points(path, found):
    with open(path, "w") as out:
        for name, points in found.items():
            out.write(f"# {name}\n" + "".join(f"{n} {ms:.6g}\n" for n, ms in points) + "\n\n")
