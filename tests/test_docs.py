"""The documentation: it builds without a warning, and the code of its pages runs."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_run", DOCS / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = {page.relative_to(tmp_path / "site") for page in (tmp_path / "site").rglob("*.html")}
    assert len(built) >= len(PAGES)
    mathematics = (tmp_path / "site" / "mathematics" / "index.html").read_text()
    assert "<math" in mathematics and "\\mathbb" not in mathematics.split("annotation")[0]
    api = (tmp_path / "site" / "api" / "models" / "index.html").read_text()
    assert "Composite score matching" in api


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in (DOCS / page).read_text()]
)
def test_code_of_a_page_runs(runner, page, tmp_path):
    runner.run_page((DOCS / page).read_text(), tmp_path, quick=True)


@pytest.mark.parametrize("page", PAGES)
def test_every_output_of_a_page_is_there(runner, page):
    text = (DOCS / page).read_text()
    for language, _, output in runner.BLOCK.findall(text):
        assert output != "\n```text\n```\n", f"run docs/run.py on {page}: {language} has no output"


def test_output_follows_its_block(runner, tmp_path):
    page = "```python\nx = 2\nprint(x * 21)\n```\n\n```text\nold\n```\n\n```sh\necho there\n```\n"
    assert runner.run_page(page, tmp_path) == page.replace("old", "42")


def test_names_persist_from_block_to_block_and_files_stay_in_the_folder(runner, tmp_path):
    code = "from pathlib import Path\nPath('a').write_text('7')"
    page = f"```python\n{code}\n```\n\n```sh\ncat a\n```\n\n```text\n```\n"
    assert runner.run_page(page, tmp_path).endswith("```text\n7\n```\n")
    assert (tmp_path / "a").read_text() == "7"


def test_a_failing_block_is_an_error(runner, tmp_path):
    with pytest.raises(SystemExit, match="false"):
        runner.run_page("```sh\nfalse\n```\n", tmp_path)
    with pytest.raises(ZeroDivisionError):
        runner.run_page("```python\n1 / 0\n```\n", tmp_path)


def test_quick_code_takes_five_steps(runner):
    assert runner.quickened("fit(max_seconds=30, a=1)") == "fit(max_steps=5, a=1)"
    assert runner.quickened("arcsm train x --max-seconds 60") == "arcsm train x --max-steps 5"
