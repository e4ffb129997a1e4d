"""Run the code of the pages and write what it prints below it.

    python docs/run.py docs/start.md docs/tasks/*.md     # rewrites these pages
    python docs/run.py --quick docs/start.md             # runs them only, with next to no training

The blocks of a page marked ```python run in one namespace, those marked ```sh in a shell, in the
order of the page, in a new folder. A block ```text that follows one is its output and is replaced;
pictures that the code has written and the page shows are copied to docs/assets. --quick takes
every `max_seconds=…` and `--max-seconds …` for five steps, and changes no page.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(\n```text\n.*?^```\n)?", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\([./]*assets/([\w.-]+)\)")


def quickened(code: str) -> str:
    """Return the code with five steps in place of every time of training."""
    code = re.sub(r"(ImageSettings\([^)]*)max_seconds=[\d.]+", r"\1steps=5", code)
    code = re.sub(r"max_seconds=[\d.]+", "max_steps=5", code)
    return re.sub(r"--max-seconds [\d.]+", "--max-steps 5", code)


def run_page(text: str, folder: Path, *, quick: bool = False) -> str:
    """Run the blocks of a page in `folder`; return the page with what they print."""
    namespace: dict[str, Any] = {"__name__": "__main__"}

    def replaced(match: re.Match[str]) -> str:
        language, code, output = match.groups()
        run = quickened(code) if quick else code
        printed = run_python(run, namespace) if language == "python" else run_shell(run)
        block = f"```{language}\n{code}```\n"
        return (
            block
            if output is None
            else f"{block}\n```text\n{printed.rstrip().lstrip(chr(10))}\n```\n"
        )

    here = Path.cwd()
    os.chdir(folder)
    try:
        return BLOCK.sub(replaced, text)
    finally:
        os.chdir(here)


def run_python(code: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<page>", "exec"), namespace)  # the repository's own pages
    return printed.getvalue()


def run_shell(code: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"this block failed:\n{code}\n{done.stdout}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--quick", action="store_true", help="five steps; no page is changed")
    arguments = parser.parse_args()
    for page in arguments.pages:
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            new = run_page(text, Path(folder), quick=arguments.quick)
            if arguments.quick:
                continue
            for name in PICTURE.findall(text):
                if (made := Path(folder, name)).exists():
                    shutil.copy(made, DOCS / "assets" / name)
        page.write_text(new)
        print(f"{page}: run", file=sys.stderr)


if __name__ == "__main__":
    main()
