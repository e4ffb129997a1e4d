"""What was measured, from the files in `results/`: one page, and a part of the README."""

import os
from pathlib import Path

from arcsm.files import write_text
from arcsm.report.page import render
from arcsm.report.readme import with_results
from arcsm.report.records import Results, read_folder

__all__ = ["Results", "read_folder", "render", "with_results", "write_report"]


def write_report(
    output: str | os.PathLike[str],
    *,
    results: str | os.PathLike[str] = "results",
    readme: str | os.PathLike[str] | None = None,
) -> Results:
    """Write the page to `output` and, if it is named, the results into the README.

    Nothing is written unless all files can be read.
    """
    found = read_folder(results)
    page = render(found)
    text = None if readme is None else with_results(Path(readme), found)
    write_text(output, page)
    if readme is not None and text is not None:
        write_text(readme, text)
    return found
