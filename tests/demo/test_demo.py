"""The demonstration as a whole, in its quick form."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import PNG, Page, pixels, problems
from rich.console import Console

from arcsm.demo import Settings, run, run_demo
from arcsm.errors import ArcsmError, InputError
from arcsm.pages import data_uri
from arcsm.progress import Reporter


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The page that `arcsm demo --quick` writes, and what was said meanwhile."""
    path = tmp_path_factory.mktemp("demo") / "page.html"
    log = io.StringIO()
    run_demo(path, Settings(quick=True), reporter=Reporter(Console(file=log)))
    return path, log.getvalue()


@pytest.fixture(scope="module")
def html(demo: tuple[Path, str]) -> str:
    return demo[0].read_text(encoding="utf-8")


@pytest.mark.slow
def test_page_is_whole(demo: tuple[Path, str], html: str) -> None:
    assert problems(html) == []
    assert len(Page(html).images) == 12
    assert list(demo[0].parent.iterdir()) == [demo[0]]


def blank() -> str:
    from arcsm.demo.figures import montage

    return data_uri(montage(np.zeros((1, 4)), 1, peak=1, side=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "replacement", "expected"),
    [
        ('id="unusual"', "", "no unusual"),
        ('id="loss"', 'id="likelihood"', "no loss"),
        (r"</figure>", "", "unbalanced"),
        ("</body>", '<img src="https://example.org/x.png" alt="x"></body>', "reference"),
        ("</style>", "body { background: url(x.png) }</style>", "reference"),
        ("</style>", "@import 'x.css';</style>", "reference"),
        ("</head>", "<script>1</script></head>", "<script>"),
        ('src="data:[^"]*"', "BLANK", "blank image"),
        ('alt="[^"]*"', 'alt=""', "without alt"),
        (r"<figcaption>.*?</figcaption>", "<figcaption></figcaption>", "empty caption"),
        (r"KL\(truth", "nan KL(truth", "number that is none"),
    ],
)
def test_the_check_of_the_page_can_fail(
    html: str, pattern: str, replacement: str, expected: str
) -> None:
    replacement = replacement.replace("BLANK", f'src="{blank()}"')
    broken, count = re.subn(pattern, lambda _: replacement, html, count=1, flags=re.DOTALL)
    assert count == 1
    assert any(expected in problem for problem in problems(broken))


@pytest.mark.slow
def test_stages_are_reported_and_timed(demo: tuple[Path, str], html: str) -> None:
    said = demo[1]
    for stage in ("training on two-spirals", "training on the digits", "likelihood", "denoising"):
        assert stage in said
    assert "Wrote" in said and "page.html" in said.replace("\n", "")
    foot = Page(html).text["about"]
    assert "training on two-spirals" in foot and "together" in foot
    assert "arcsm demo -o page.html --quick" in foot and "torch" in foot and "seed" in foot


@pytest.mark.slow
def test_page_says_the_same_in_every_place(html: str) -> None:
    """The KL of the head, of the caption and of the table are one number."""
    page = Page(html)
    caption = re.search(r"= (−?[\d.]+) ± [\d.]+ nats", page.text["density"])
    table = re.search(
        r"Truth minus the entropy −[\d.]+ ± [\d.]+ ([+−][\d.]+) ±", page.text["likelihood"]
    )
    head = re.search(r"(−?[\d.]+) ± [\d.]+ nats KL", page.text["what"])
    assert caption is not None and table is not None and head is not None
    kl, *same = (float(found[1].replace("−", "-")) for found in (caption, table, head))
    assert same == pytest.approx([kl, kl], abs=1e-3)


@pytest.mark.slow
def test_digits_have_their_pixels(html: str) -> None:
    images = {image["alt"]: image["src"] for image in Page(html).images}
    real, generated = (pixels(images[f"{what} digits"]) for what in ("real", "generated"))
    assert real.shape == generated.shape
    assert real[..., 3].min() == 0 and real[..., 3].max() == 255  # gaps, and digits
    assert all(src.startswith(PNG) for src in images.values())


def test_other_toys_and_seeds_are_named_in_the_command() -> None:
    command = run._command("somewhere/x y.html", Settings("rings", 3, True))
    assert command == "arcsm demo -o 'x y.html' --toy rings --seed 3 --quick"
    assert run._command("p.html", Settings()) == "arcsm demo -o p.html"
    with pytest.raises(InputError, match=r"two-moons.*'nonsense'"):
        Settings(toy="nonsense")


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trained:
        def __getattr__(self, name: str) -> Any:
            return {"model": MODEL, "training": run.ToySizes()}

    monkeypatch.setattr(run, "_describe", lambda settings: "")
    for name in ("run_toy", "run_digits"):
        monkeypatch.setattr(run, name, lambda *_: Trained())
    monkeypatch.setattr(run, "render", lambda *_: "<!doctype html>new")


MODEL: dict[str, Any] = {}


def quiet() -> Reporter:
    return Reporter(Console(file=io.StringIO()))


@pytest.mark.parametrize("place", ["render", "run_digits"])
@pytest.mark.parametrize("error", [RuntimeError("injected"), KeyboardInterrupt()])
@pytest.mark.usefixtures("no_training")
def test_a_failure_leaves_the_old_page_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise error

    page = tmp_path / "page.html"
    page.write_text("old")
    monkeypatch.setattr(run, place, fail)
    with pytest.raises(type(error)):
        run_demo(page, Settings(quick=True), reporter=quiet())
    assert page.read_text() == "old" and list(tmp_path.iterdir()) == [page]
    monkeypatch.undo()


@pytest.mark.usefixtures("no_training")
def test_a_full_disk_is_an_error_in_words_and_leaves_no_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("arcsm.files.os.replace", fail)
    with pytest.raises(ArcsmError, match="No space left on device; choose another path"):
        run_demo(tmp_path / "page.html", Settings(quick=True), reporter=quiet())
    assert list(tmp_path.iterdir()) == []


def test_training_bar_moves_and_ends_in_a_line() -> None:
    from arcsm.train import Progress

    log = io.StringIO()
    reporter = Reporter(Console(file=log, force_terminal=True, width=100))
    with reporter.training("training", 10) as update:
        update(Progress(5, 10, -1.25, None, 1.0, 0.5))
    assert "5/10" in log.getvalue() and "loss -1.25" in log.getvalue()
    assert "✓ training" in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", log.getvalue())
    assert list(reporter.seconds) == ["training"]
