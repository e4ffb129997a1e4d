"""The results as a part of a README, between two marks."""

from pathlib import Path

from arcsm.errors import InputError
from arcsm.experiments import Experiment, command_of
from arcsm.report import words
from arcsm.report.records import SHOWN_BUDGETS, Entry, Results, Run

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def with_results(path: Path, results: Results) -> str:
    """Return the text of a README with the results between its marks in place of what was there."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"expected a README at {str(path)!r}, got none; check the path") from error
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise InputError(
            f"expected the lines {BEGIN!r} and, after it, {END!r} once each in {str(path)!r}, got"
            " others; put them where the results should go"
        )
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(results)}\n{END}{after}"


def tables(results: Results) -> str:
    """Return the results in Markdown."""
    parts = [_run(experiment, run) for experiment, run in results.experiments if run is not None]
    missing = [experiment for experiment, run in results.experiments if run is None]
    if missing:
        commands = ", ".join(f"`{_command(experiment)}`" for experiment in missing)
        parts.append(f"Not run yet: {commands}.\n")
    if results.others:
        lines = ["| record | numbers | command | commit |", "|---|---|---|---|"]
        lines += [_other(entry) for entry in results.others]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _run(experiment: Experiment, run: Run) -> str:
    lines = [f"**{experiment.title}** ({_source(run)}). {experiment.question}", ""]
    compared = [(claim, run.measured(claim)) for claim in experiment.claims]
    if any(metric is not None for _, metric in compared):
        lines += ["| the paper | its number | ours |", "|---|---|---|"]
        lines += [
            f"| {_cell(claim.text)} ({_cell(claim.source)}) | {_cell(words.claimed(claim))} |"
            f" {'–' if metric is None else _cell(words.value(metric) + words.unit(metric.unit))} |"
            for claim, metric in compared
        ]
        lines.append("")
    lines += _verdicts(run)
    for other in run.others:
        lines += ["", f"Also under the budget {other.budget} ({_source(other)}):", ""]
        lines += _verdicts(other)
    return "\n".join(lines) + "\n"


def _source(run: Run) -> str:
    """Return where the numbers of a run come from."""
    record = run.entry.record
    seeds = len(record["seeds"])
    extent = f" {run.extent} so far," if run.left else ""
    if not run.as_today:
        extent += " other settings than those of today,"
    return (
        f"`results/{run.entry.file}`, `{record['command']}`;{extent}"
        f" {seeds} {'seed' if seeds == 1 else 'seeds'}, {run.entry.hardware},"
        f" {words.duration(record['seconds'])}"
    )


def _verdicts(run: Run) -> list[str]:
    return [
        f"- *{words.verdict(verdict)}*: {' '.join(verdict.text.split())}"
        for verdict in run.verdicts
    ]


def _other(entry: Entry) -> str:
    command = _cell(entry.record["command"])
    return (
        f"| `results/{entry.file}` | {len(entry.metrics)} | `{command}` | {_cell(entry.commit)} |"
    )


def _command(experiment: Experiment) -> str:
    budget = next(budget for budget in SHOWN_BUDGETS[::-1] if budget in experiment.budgets)
    return command_of(experiment.name, budget)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
