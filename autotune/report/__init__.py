"""`autotune report`: one self-contained HTML file, or Markdown for a pull request."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import InputError
from autotune.report.facts import facts_of
from autotune.report.markdown import markdown_page
from autotune.run import Run, read_run
from autotune.rundir import RunDir, write_text

FORMATS = ("html", "md")


def render_report(run: Run, format: str = "html") -> str:
    """The report's text in one of FORMATS.

    Raises:
        InputError: an unknown format, or what draws the HTML is not installed.
    """
    if format not in FORMATS:
        raise InputError(
            f"unknown format {format!r}: one of {', '.join(FORMATS)}", field="--format"
        )
    if format == "md":
        return markdown_page(facts_of(run))
    try:
        from autotune.report.page import html_page
    except ImportError as error:
        raise InputError(
            f"the HTML report needs {error.name}: pip install 'autotune-llm[report]'"
        ) from error
    return html_page(facts_of(run))


def write_report(path: Path, format: str = "html", out: Path | None = None) -> str:
    """Write the report of a run; returns what to print: its path, or Markdown without `out`."""
    if out is not None and not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent}", field="--out")
    text = render_report(read_run(path), format)
    if out is None and format == "md":
        return text
    place = out or RunDir(path).report_html
    write_text(place, text)
    return str(place)
