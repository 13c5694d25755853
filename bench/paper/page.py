# SPDX-License-Identifier: MIT
"""Tables in Markdown, pictures in SVG, and the page RESULTS.md."""

import pathlib
import re

HERE = pathlib.Path(__file__).parent


def markdown(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def seen(experiment, results):
    """(text, whether it holds in these results) of each expectation."""
    return [(each.text, bool(each.holds(results))) for each in experiment.expectations]


def section(experiment, results):
    """The part of the page about one experiment."""
    expected = markdown(
        ["what is expected", "here"],
        [[text, "seen" if holds else "**not seen**"] for text, holds in seen(experiment, results)],
    )
    seeds = len({seed for _, seed, _ in results.entries})
    over = ", ".join(filter(None, [f"{seeds} seeds", experiment.deviations])) if seeds > 1 else "one seed"
    used = sorted({result["data"] for _, _, result in results.entries if "data" in result})
    minutes = f"{results.seconds() / 60:.1f} minutes, summed over runs"
    machines = sorted(set(results.values("machine")))
    if len(machines) > 1:
        machines.insert(0, "rows of several machines, whose times are not comparable")
    about = [f"`python -m paper {experiment.name}`: {len(results.entries)} runs, {over}", minutes, *used, *machines]
    parts = [f"## {experiment.title}", experiment.claim, markdown(*experiment.table(results)), expected]
    if experiment.notes:
        parts.append(experiment.notes)
    parts.append("; ".join(about) + ".")
    return "\n\n".join(parts) + "\n"


def picture(experiment, results, folder):
    """Draws NAME.svg in the folder, and returns its path."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{experiment.name}.svg"
    with matplotlib.rc_context({"svg.hashsalt": experiment.name, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        experiment.draw(results, figure)
        figure.savefig(path, metadata={"Date": None})
    return path


def kept_sections(path):
    """{title: text} of the parts of a page that exists."""
    text = path.read_text() if path.exists() else ""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0].removeprefix("## "): part.rstrip("\n") + "\n" for part in parts}


def write(experiments, found, size, path):
    """The page of the experiments, of one of the sizes of Options. found: {name: results} of those that have results; a
    part of the others stays as it is on the page."""
    parts = kept_sections(path)
    for experiment in experiments:
        if (results := found.get(experiment.name)) is None:
            continue
        image = picture(experiment, results, path.parent / "pictures" / path.stem.lower())
        parts[experiment.title] = (
            section(experiment, results) + f"\n![{experiment.title}]({image.relative_to(path.parent)})\n"
        )
    sizes = {"tiny": "sizes of the tests, without meaning", "small": "the miniature", "paper": "the paper's sizes"}
    head = [
        "# Results of the experiments",
        "Written by `python -m paper all` (see [README](README.md)). *Seen* and *not seen* are computed from the numbers of "
        "the table: *better* and *worse* by more than the standard error of the difference over seeds, others by the margin "
        "that the line states, or without one by comparing means. The paper shows what is expected, unless the line says "
        "that it does not.",
        f"Sizes: {sizes[size]}. The machine of an experiment stands beside its command.",
    ]
    body = [parts[experiment.title] for experiment in experiments if experiment.title in parts]
    path.write_text("\n\n".join(head) + "\n\n" + "\n".join(body))
    return path
