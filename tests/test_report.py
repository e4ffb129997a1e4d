"""The page and the README say what is in the files: no more, no less, and nothing of smoke."""

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo.pages import Page, pixels
from matplotlib.figure import Figure

from arcsm.errors import InputError
from arcsm.experiments.experiment import Claim, Experiment, Piece, Verdict
from arcsm.files import write_json
from arcsm.report import read_folder, records, render, words, write_report
from arcsm.report.readme import BEGIN, END
from arcsm.results import Metric, write_result

REPOSITORY = Path(__file__).resolve().parent.parent


def experiment(name: str, **changes: Any) -> Experiment:
    parts: dict[str, Any] = {
        "name": name,
        "title": f"The {name} < title",
        "question": "Does A & B hold?",
        "claims": (
            Claim("CSM reaches it", "Table 2", "nll", 95.02, "nats", {"method": "csm"}),
            Claim("SSM does not", "Section 5", "nll", None, labels={"method": "ssm"}),
            Claim("Words alone", "Figure 1"),
        ),
        "budgets": {"smoke": {}, "cpu": {"steps": 1}, "gpu": {"steps": 2}, "paper": {"steps": 3}},
        "pieces": lambda settings: [Piece("a", {})],
        "run": lambda *_: {},
        "metrics": lambda *_: [],
        "figures": lambda *_: {},
        "verdicts": lambda settings, metrics: [
            Verdict(metrics[0].value < 95.5, f"{metrics[0].value} at {settings['steps']} | steps"),
            Verdict(None, "who knows"),
        ],
    }
    return Experiment(**{**parts, **changes})


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    known = {name: experiment(name) for name in ("second", "first")}
    monkeypatch.setattr(records, "NAMES", tuple(known))
    monkeypatch.setattr(records, "get_experiment", known.__getitem__)
    return known


def write_run(
    folder: Path,
    name: str,
    budget: str,
    value: float = 95.0,
    figures: Sequence[str] = (),
    **settings: Any,
) -> dict[str, Any]:
    record = write_result(
        folder / f"{name}-{budget}.json",
        experiment=name,
        metrics=[
            Metric("nll", value, "nats", 3, spread=0.25, labels={"method": "csm", "latent": 8}),
            Metric("nll", None, "nats", 0, labels={"method": "ssm"}, reason="out of memory"),
        ],
        seeds=[0, 1, 2],
        settings={
            "budget": budget,
            "device": "cpu",
            "figures": figures,
            "experiment": {"steps": {"cpu": 1, "gpu": 2, "paper": 3}.get(budget, 0), **settings},
        },
        seconds=61.0,
        command=f"arcsm reproduce {name} --budget {budget}",
        commit={"id": "0123456789abcdef", "dirty": True},
    )
    return record


def leave_pieces(path: Path, done: int, left: Sequence[str]) -> None:
    """Make the record one of some pieces."""
    record = json.loads(path.read_text())
    record["settings"] |= {"pieces": done, "left": left}
    write_json(path, record)


def write_figure(folder: Path, run: str) -> None:
    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([0, 1])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    (folder / run).mkdir()
    (folder / run / "curve.png").write_bytes(buffer.getvalue())


def write_other(folder: Path, name: str = "tables", **labels: Any) -> None:
    write_result(
        folder / f"{name}.json",
        experiment=name,
        metrics=[
            Metric("rank", 1.25, "1", 44, interval=(1.0, 1.5), labels={"set": "a<b", **labels})
        ],
        seeds=[],
        settings={},
        seconds=1.0,
        command="python benchmarks/tables.py | x",
        commit={"id": "fedcba9876543210", "dirty": False},
    )


def page_of(folder: Path) -> Page:
    return Page(render(read_folder(folder)))


def test_a_run_shows_the_claim_its_number_ours_the_verdict_and_how_it_was_run(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "first", "cpu", figures=["curve"])
    write_figure(tmp_path, "first-cpu")
    page = page_of(tmp_path)
    text = page.text["first"]
    for part in (
        "The first < title", "Does A & B hold?", "CSM reaches it", "Table 2", "95.02 nats",
        "95.00 ± 0.25 nats", "n = 3", "none: out of memory", "Words alone", "Figure 1",
        "Holds. 95.0 at 1 | steps", "Not decided. who knows", "0, 1, 2", "0123456789 with changes",
        "arcsm reproduce first --budget cpu", "first-cpu.json", "61 s",
    ):  # fmt: skip
        assert part in text, part
    assert page.unclosed == [] and page.ids.count("first") == 1
    assert len(page.images) == 1 and "curve" in page.images[0]["alt"]
    assert np.ptp(pixels(page.images[0]["src"])) > 0
    assert "other settings" not in text


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_run(tmp_path, "first", "cpu", figures=["curve"])
    write_figure(tmp_path, "first-cpu")
    write_other(tmp_path)
    html = render(read_folder(tmp_path))
    page = Page(html)
    assert not re.search(r"https?:|@import|<script|<link", html)
    outside = [r for r in page.references if not str(r).startswith(("data:image/png", "#"))]
    assert outside == []
    links = [r[1:] for r in page.references if str(r).startswith("#")]
    assert set(links) <= set(page.ids) and {"first", "second"} <= set(links)


def test_experiments_come_in_the_order_of_the_registry_and_those_not_run_say_so(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "first", "cpu")
    page = page_of(tmp_path)
    assert [name for name in page.ids if name in ("first", "second")] == ["second", "first"]
    assert "Not run. arcsm reproduce second --budget cpu runs it" in page.text["second"]
    assert "1 of 2 experiments were run" in page.text["top"]
    assert "1 of 2 verdicts" in page.text["top"]


@pytest.mark.parametrize(
    ("budgets", "shown", "others"),
    [
        (["cpu", "gpu", "paper"], "paper", ["gpu", "cpu"]),
        (["smoke", "cpu", "gpu"], "gpu", ["cpu"]),
        (["smoke", "cpu"], "cpu", []),
        (["smoke"], None, []),
    ],
)
def test_the_best_budget_comes_first_others_after_it_and_smoke_never(
    tmp_path: Path, budgets: list[str], shown: str | None, others: list[str]
) -> None:
    for budget in budgets:
        write_run(tmp_path, "first", budget)
    text = page_of(tmp_path).text["first"]
    if shown is None:
        assert "Not run." in text
    else:
        steps = {"cpu": 1, "gpu": 2, "paper": 3}
        # Each with its own verdicts, numbers and file, one after the other.
        wanted = [f"95.0 at {steps[shown]} | steps", f"first-{shown}.json"]
        for other in others:
            wanted.append(f"Also run under the budget {other}")
            wanted += [f"95.0 at {steps[other]} | steps", f"first-{other}.json"]
        places = [text.index(part) for part in wanted]
        assert places == sorted(places) and text.count("Also run") == len(others)
    found = read_folder(tmp_path)
    assert "smoke" not in render(found)
    assert found.left_out == (["first-smoke.json"] if "smoke" in budgets else [])


def test_a_verdict_that_fails_is_said_to_fail(tmp_path: Path) -> None:
    write_run(tmp_path, "first", "cpu", value=96.0)
    assert "Does not hold. 96.0 at 1" in page_of(tmp_path).text["first"]


def test_a_claim_is_compared_with_the_metric_of_its_labels(
    tmp_path: Path, registry: dict[str, Experiment]
) -> None:
    write_run(tmp_path, "first", "cpu")
    run = read_folder(tmp_path).experiments[1][1]
    assert run is not None
    csm, ssm, alone = (run.measured(claim) for claim in registry["first"].claims)
    assert csm is not None and csm.value == 95.0
    assert ssm is not None and ssm.reason == "out of memory" and alone is None


def test_text_is_text(tmp_path: Path, registry: dict[str, Experiment]) -> None:
    tag = "<i>x</i>"
    registry["first"] = experiment(
        "first",
        title=tag,
        question=tag,
        claims=(Claim(tag, tag),),
        verdicts=lambda settings, metrics: [Verdict(True, tag)],
    )
    write_run(tmp_path, "first", "cpu")
    write_other(tmp_path, name="other", tag=tag)
    assert "<i>x" not in render(read_folder(tmp_path))


def test_figures_come_in_the_order_of_the_experiment_and_none_is_passed_over(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "first", "cpu", figures=["curve", "a"])
    write_figure(tmp_path, "first-cpu")
    with pytest.raises(InputError, match=r"a\.png.*nothing there"):
        read_folder(tmp_path)
    (tmp_path / "first-cpu/a.png").write_bytes((tmp_path / "first-cpu/curve.png").read_bytes())
    found = [image["alt"] for image in page_of(tmp_path).images]
    assert [alt.split(": ")[1] for alt in found] == ["curve", "a"]


def test_a_run_that_is_not_finished_says_what_is_left(tmp_path: Path) -> None:
    write_run(tmp_path, "first", "gpu")
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    page = page_of(tmp_path)
    assert "so far" not in page.text["first"] and "pieces" not in page.text["top"]
    leave_pieces(tmp_path / "first-gpu.json", 3, ["d", "e"])
    write_report(tmp_path / "page.html", results=tmp_path, readme=readme)
    page = page_of(tmp_path)
    assert "3 of 5 pieces so far; left: d, e" in page.text["first"]
    assert "3 of 5 pieces" in page.text["top"]
    told = "`arcsm reproduce first --budget gpu`; 3 of 5 pieces so far, 3 seeds"
    assert told in readme.read_text()
    assert "experiments were run, 1 of them in part" in page.text["top"]


def test_a_run_with_few_of_the_papers_numbers_gives_way_to_one_with_many(
    tmp_path: Path, registry: dict[str, Experiment]
) -> None:
    methods = ("csm", "ssm", "dsm", "sm", "nll")
    claims = [Claim(m, "Table 2", "nll", labels={"method": m}) for m in methods]
    registry["first"] = experiment("first", claims=claims)
    for budget in ("paper", "gpu", "cpu"):
        record = write_run(tmp_path, "first", budget)
        every = [{**record["metrics"][0], "labels": {"method": m}} for m in methods]
        write_json(tmp_path / f"first-{budget}.json", {**record, "metrics": every})
    run = read_folder(tmp_path).experiments[1][1]
    assert run is not None and run.budget == "paper"
    assert [other.budget for other in run.others] == ["gpu", "cpu"]
    path = tmp_path / "first-paper.json"
    record = json.loads(path.read_text())
    write_json(path, {**record, "metrics": record["metrics"][:2]})  # two of five
    leave_pieces(path, 1, ["d"])
    run = read_folder(tmp_path).experiments[1][1]
    assert run is not None and run.budget == "paper" and run.left == ["d"]
    write_json(path, {**record, "metrics": record["metrics"][:1]})  # one of five
    leave_pieces(path, 1, ["d"])
    run = read_folder(tmp_path).experiments[1][1]
    assert run is not None and run.budget == "gpu"
    assert [other.budget for other in run.others] == ["paper", "cpu"]


def test_settings_of_another_day_are_pointed_out(tmp_path: Path) -> None:
    write_run(tmp_path, "first", "cpu", width=7)
    assert "other settings than those of today" in page_of(tmp_path).text["first"]
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    write_report(tmp_path / "page.html", results=tmp_path, readme=readme)
    assert "--budget cpu`; other settings than those of today, 3 seeds" in readme.read_text()


def test_other_records_are_listed_with_all_their_numbers(tmp_path: Path) -> None:
    write_other(tmp_path)
    text = page_of(tmp_path).text["others"]
    for part in (
        "tables", "1 numbers: rank", "set a<b", "1.25", "95 %: 1 … 1.5", "44", "fedcba9876",
        "python benchmarks/tables.py | x", "nothing was random",
    ):  # fmt: skip
        assert part in text, part
    assert "with changes" not in text


def damage(content: Mapping[str, Any]) -> dict[str, bytes]:
    whole = json.dumps(content)
    return {
        "half-written": whole[: len(whole) // 2].encode(),
        "another version": json.dumps({**content, "version": 2}).encode(),
        "not a record": b'{"rows": 3}',
        "not text": b"\xff\xfe\x00",
        "a field missing": json.dumps({**content, "seeds": None}).encode(),
    }


@pytest.mark.parametrize(
    "kind", ["half-written", "another version", "not a record", "not text", "a field missing"]
)
def test_a_file_that_is_no_record_is_named_and_nothing_is_written(
    tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "results"
    content = damage(write_run(folder, "first", "cpu"))[kind]
    (folder / "broken.json").write_bytes(content)
    page = tmp_path / "page.html"
    with pytest.raises(InputError, match=r"broken\.json.*move it out of the folder"):
        write_report(page, results=folder)
    assert not page.exists()


def test_a_record_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    record = write_run(tmp_path, "second", "cpu")
    write_json(tmp_path / "first-cpu.json", record)
    with pytest.raises(InputError, match=r"first-cpu\.json.*got that of second"):
        read_folder(tmp_path)


def test_a_record_that_todays_verdicts_cannot_read_is_refused(
    tmp_path: Path, registry: dict[str, Experiment]
) -> None:
    write_run(tmp_path, "first", "cpu")

    def verdicts(settings: Any, metrics: Any) -> list[Verdict]:
        return [{}["fid"]]

    registry["first"] = experiment("first", verdicts=verdicts)
    with pytest.raises(InputError, match=r"metrics of today's first in 'first-cpu\.json'.*'fid'"):
        read_folder(tmp_path)


def test_no_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing there"):
        read_folder(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a file"):
        read_folder(tmp_path / "file")


def test_the_readme_is_rewritten_between_its_marks_alone_and_the_same_twice(
    tmp_path: Path,
) -> None:
    folder, readme = tmp_path / "results", tmp_path / "README.md"
    for budget in ("gpu", "cpu"):
        write_run(folder, "first", budget)
    write_other(folder)
    readme.write_text(f"# Title\n\n{BEGIN}\nstale | table\n{END}\n\nThe rest.\n", encoding="utf-8")
    write_report(tmp_path / "page.html", results=folder, readme=readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"# Title\n\n{BEGIN}\n") and text.endswith(f"\n{END}\n\nThe rest.\n")
    assert "stale" not in text
    assert "| CSM reaches it (Table 2) | 95.02 nats | 95.00 ± 0.25 nats |" in text
    first, also, rest = (
        text.index(part)
        for part in (
            "- *holds*: 95.0 at 2 | steps",
            "Also under the budget cpu (`results/first-cpu.json`, `arcsm reproduce first --budget",
            "- *holds*: 95.0 at 1 | steps",
        )
    )
    assert first < also < rest
    assert "Not run yet: `arcsm reproduce second --budget cpu`." in text
    assert (
        "| `results/tables.json` | 1 | `python benchmarks/tables.py \\| x` | fedcba9876 |" in text
    )
    write_report(tmp_path / "page.html", results=folder, readme=readme)
    assert readme.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("marks", ["", BEGIN, END, f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}"])
def test_a_readme_without_its_marks_is_refused_and_left_alone(tmp_path: Path, marks: str) -> None:
    folder, readme = tmp_path / "results", tmp_path / "README.md"
    write_run(folder, "first", "cpu")
    readme.write_text(f"text {marks}")
    with pytest.raises(InputError, match=r"README\.md"):
        write_report(tmp_path / "page.html", results=folder, readme=readme)
    assert readme.read_text() == f"text {marks}" and not (tmp_path / "page.html").exists()
    with pytest.raises(InputError, match="check the path"):
        write_report(tmp_path / "page.html", results=folder, readme=tmp_path / "none.md")


@pytest.mark.parametrize(
    ("value", "spread", "shown"),
    [
        (95.0, None, "95"),
        (-172.514, 0.0, "−172.5"),
        (1.23456, 0.0123, "1.235 ± 0.012"),
        (20_312.4, 151.0, "20,312 ± 151"),
        (0.1, 2.5, "0.1 ± 2.5"),
        (0.0000123, None, "1.23e−05"),
        (0.5, None, "0.5"),
    ],
)
def test_numbers_for_people(value: float, spread: float | None, shown: str) -> None:
    assert words.value(Metric("x", value, "1", 1, spread=spread)) == shown


def test_the_results_of_the_repository_make_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from arcsm.experiments import NAMES, get_experiment

    monkeypatch.setattr(records, "NAMES", NAMES)
    monkeypatch.setattr(records, "get_experiment", get_experiment)
    page = page_of(REPOSITORY / "results")
    assert page.unclosed == [] and set(NAMES) <= set(page.ids)
    assert not re.search(r"\b(nan|inf)\b", " ".join(page.text.values()))
