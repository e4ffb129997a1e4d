"""The page: each experiment with what the paper says, what came out, and how it was run."""

from collections.abc import Iterable, Sequence
from html import escape

from arcsm.experiments import Experiment, command_of
from arcsm.pages import definitions, document, image
from arcsm.pages.style import CSS as SHARED
from arcsm.report import words
from arcsm.report.records import SHOWN_BUDGETS, Entry, Results, Run
from arcsm.results import Metric

_OWN = """
.facts { grid-template-columns: repeat(3, 1fr); }
td.text, th.text { text-align: left; white-space: normal; }
td.text { min-width: 11em; overflow-wrap: anywhere; }
table.claims td { vertical-align: top; }
ul.verdicts { list-style: none; margin: 22px 0 0; padding: 0; max-width: 54em; }
ul.verdicts li { padding: 8px 0 8px 14px; border-left: 3px solid var(--data); margin-bottom: 8px; }
ul.verdicts li.holds { border-color: var(--model); }
ul.verdicts li.not { border-color: var(--score); }
ul.verdicts b, .state { font-weight: 600; }
.holds > b, .state.holds { color: var(--model); }
.not > b, .state.not { color: var(--score); }
.state.missing { color: var(--muted); font-weight: 400; }
.plot { overflow-x: auto; background: #fff; border: 1px solid var(--rule); border-radius: 12px;
  padding: 14px; }
.plot img { min-width: 620px; }
figure.block { margin-top: 26px; }
dl.about { margin-top: 26px; font-size: 14px; }
.about dt { color: var(--muted); }
details { margin-top: 18px; border-top: 1px solid var(--rule); padding-top: 10px; }
summary { cursor: pointer; }
summary small { color: var(--muted); font-size: 13.5px; margin-left: 8px; }
details dl.about { margin-top: 12px; }
details table { font-size: 14px; margin-top: 10px; }
details th:first-child { font-size: 13px; color: var(--muted); font-weight: 500; }
details td, details th { padding: 5px 10px; }
a { color: inherit; text-decoration-color: var(--data); text-underline-offset: 3px; }
code { overflow-wrap: anywhere; }
@media (max-width: 720px) {
  .facts { grid-template-columns: 1fr; }
  .wide-only { display: none; }
  td.text { min-width: 8em; }
  dl.about { grid-template-columns: 1fr; gap: 0; }
  .about dd { margin-bottom: 6px; }
}
"""


def render(results: Results) -> str:
    """Return the whole page."""
    sections = [
        _not_run(experiment) if run is None else _section(experiment, run)
        for experiment, run in results.experiments
    ]
    body = "\n".join([_head(results), *sections, _others(results.others), _foot()])
    return document("arcsm: what the paper claims, and what came out", SHARED + _OWN, body)


def _head(results: Results) -> str:
    runs = [run for _, run in results.experiments if run is not None]
    verdicts = [verdict for run in runs for verdict in run.verdicts]
    held = sum(verdict.holds is True for verdict in verdicts)
    parts = sum(bool(run.left) for run in runs)
    facts = (
        (
            f"{len(runs)} of {len(results.experiments)}",
            "experiments were run" + (f", {parts} of them in part" if parts else ""),
        ),
        (f"{held} of {len(verdicts)}", "verdicts on them hold"),
        (f"{len(results.others)}", "other records, at the end"),
    )
    cells = "".join(f"<div><strong>{n}</strong><span>{text}</span></div>" for n, text in facts)
    lines = "".join(_line(experiment, run) for experiment, run in results.experiments)
    return f"""<header id="top">
<p class="kicker">arcsm</p>
<h1>What the paper claims, and what came out</h1>
<p class="lead">Every number here comes from a file that a command wrote, with its seeds, settings,
commit and hardware; what was not run is shown as not run. Claims are those of <i>Autoregressive
Score Matching</i> (Meng, Yu, Song, Song, Ermon, 2020).</p>
<div class="facts">{cells}</div>
<div class="wide block"><table><thead><tr><th>Experiment</th><th class="text">verdicts</th>
<th>budget</th><th class="wide-only">run on</th></tr></thead><tbody>{lines}</tbody></table></div>
</header>"""


def _line(experiment: Experiment, run: Run | None) -> str:
    link = f'<a href="#{experiment.name}">{escape(experiment.title)}</a>'
    if run is None:
        return (
            f'<tr><td>{link}</td><td class="text"><span class="state missing">not run</span></td>'
            '<td>–</td><td class="wide-only">–</td></tr>'
        )
    found = [verdict.holds for verdict in run.verdicts]
    states = ", ".join(
        f'<span class="state {_style(holds)}">{words.tally(holds, found.count(holds))}</span>'
        for holds in (True, False, None)
        if holds in found
    )
    budget = escape(run.budget)
    if run.left:
        budget += f"<small>{escape(run.extent)}</small>"
    return (
        f'<tr><td>{link}</td><td class="text">{states or "–"}</td><td>{budget}</td>'
        f'<td class="wide-only">{escape(run.entry.record["date"][:10])}</td></tr>'
    )


def _section(experiment: Experiment, run: Run) -> str:
    others = "".join(
        f"<details><summary>Also run under the budget {escape(other.budget)}"
        f" <small>{escape(other.entry.hardware)}</small></summary>{_findings(experiment, other)}"
        "</details>"
        for other in run.others
    )
    return f"""<section id="{experiment.name}">
<p class="kicker">{escape(experiment.name)}</p>
<h2>{escape(experiment.title)}</h2>
<p class="note">{escape(experiment.question)}</p>
{_claims(experiment, run)}
{_findings(experiment, run)}
{others}
</section>"""


def _findings(experiment: Experiment, run: Run) -> str:
    """Return what came out under one budget: verdicts, figures, and all numbers."""
    figures = "".join(
        f'<figure class="block"><div class="plot">{image(png, f"{experiment.title}: {name}")}</div>'
        "</figure>"
        for name, png in run.figures.items()
    )
    verdicts = "".join(
        f'<li class="{_style(verdict.holds)}"><b>{words.verdict(verdict).capitalize()}.</b>'
        f" {escape(verdict.text)}</li>"
        for verdict in run.verdicts
    )
    return f"""<ul class="verdicts">{verdicts}</ul>
{figures}
<dl class="about">{definitions(_about(run))}</dl>
<details><summary>All {len(run.entry.metrics)} numbers</summary>
{_metrics(run.entry.metrics)}</details>"""


def _not_run(experiment: Experiment) -> str:
    budgets = [budget for budget in SHOWN_BUDGETS if budget in experiment.budgets]
    budget = "cpu" if "cpu" in budgets else budgets[-1]
    others = [other for other in budgets if other != budget]
    also = f" (or with --budget {' or '.join(others)})" if others else ""
    return f"""<section id="{experiment.name}">
<p class="kicker">{escape(experiment.name)}</p>
<h2>{escape(experiment.title)}</h2>
<p class="note">{escape(experiment.question)}</p>
{_claims(experiment, None)}
<ul class="verdicts"><li><b>Not run.</b> <code>{escape(command_of(experiment.name, budget))}</code>
runs it{escape(also)}.</li></ul>
</section>"""


def _claims(experiment: Experiment, run: Run | None) -> str:
    """Return a table of what the paper says, where, its number, and ours."""
    # Most claims are pictures: without a number there is nothing to set beside it.
    numbers = any(claim.metric is not None for claim in experiment.claims)
    lines = []
    for claim in experiment.claims:
        cells = ""
        if numbers:
            metric = None if run is None else run.measured(claim)
            cells = f"<td>{escape(words.claimed(claim))}</td><td>{_ours(metric)}</td>"
        lines.append(
            f'<tr><td class="text">{escape(claim.text)}<small>{escape(claim.source)}</small></td>'
            f"{cells}</tr>"
        )
    if not lines:
        return ""
    heads = "<th>its number</th><th>ours</th>" if numbers else ""
    return (
        f'<div class="wide"><table class="claims"><thead><tr><th>The paper</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _ours(metric: Metric | None) -> str:
    if metric is None:
        return "–"
    runs = "" if metric.value is None else f"<small>n = {metric.n}</small>"
    return escape(words.value(metric) + words.unit(metric.unit)) + runs


def _about(run: Run) -> dict[str, str]:
    record, entry = run.entry.record, run.entry
    seeds = record["seeds"]
    about = {
        "budget": run.budget
        + ("" if run.as_today else "; with other settings than those of today"),
        **({"pieces": f"{run.extent} so far; left: {', '.join(run.left)}"} if run.left else {}),
        "seeds": ", ".join(map(str, seeds)) if seeds else "nothing was random",
        "hardware": entry.hardware,
        "time": words.duration(record["seconds"]),
        "date": record["date"][:10],
        "commit": entry.commit,
        "versions": ", ".join(f"{name} {told}" for name, told in record["versions"].items()),
        "command": record["command"],
        "file": entry.file,
    }
    commits = record["settings"].get("commits")
    if commits:
        about["commit"] += f" (pieces of it: {', '.join(commit[:10] for commit in commits)})"
    return about


def _others(entries: Sequence[Entry]) -> str:
    """Return the records that belong to no experiment, each folded up."""
    if not entries:
        return ""
    parts = []
    for entry in entries:
        record, names = entry.record, dict.fromkeys(metric.name for metric in entry.metrics)
        about = {
            "command": record["command"],
            "commit": entry.commit,
            "hardware": entry.hardware,
            "date": record["date"][:10],
            "seeds": ", ".join(map(str, record["seeds"])) or "nothing was random",
            "time": words.duration(record["seconds"]),
        }
        parts.append(
            f"<details><summary><b>{escape(entry.file.removesuffix('.json'))}</b>"
            f"<small>{len(entry.metrics)} numbers: {escape(_few(names))}</small></summary>"
            f'<dl class="about">{definitions(about)}</dl>{_metrics(entry.metrics)}</details>'
        )
    return f"""<section id="others">
<p class="kicker">Beyond the paper</p>
<h2>Other records</h2>
<p class="note">Benchmarks of what is shipped, each as its command wrote it.</p>
{"".join(parts)}
</section>"""


def _metrics(metrics: Sequence[Metric]) -> str:
    lines = []
    for metric in metrics:
        interval = ""
        if metric.interval is not None:
            ends = " … ".join(words.plain(end) for end in metric.interval)
            interval = f"<small>95 %: {ends}</small>"
        lines.append(
            f'<tr><td class="text">{escape(metric.name)}</td>'
            f'<td class="text">{escape(words.labels(metric.labels))}</td>'
            f"<td>{escape(words.value(metric) + words.unit(metric.unit))}{interval}</td>"
            f"<td>{metric.n:,}</td></tr>"
        )
    return (
        '<div class="wide"><table><thead><tr><th>metric</th><th class="text">of</th>'
        "<th>value ± spread</th><th>n</th></tr></thead><tbody>"
        f"{''.join(lines)}</tbody></table></div>"
    )


def _foot() -> str:
    return """<footer id="about">
<p>± is the standard deviation over the n runs or repeats that a number summarises, not an error of
the mean. Budgets: <b>paper</b> is the paper's own settings where it states them, <b>gpu</b> and
<b>cpu</b> are less work. Verdicts are decided by the numbers alone.</p>
</footer>"""


def _style(holds: bool | None) -> str:
    return {True: "holds", False: "not", None: ""}[holds]


def _few(names: Iterable[str], most: int = 4) -> str:
    told = list(names)
    return ", ".join(told[:most]) + (", …" if len(told) > most else "")
