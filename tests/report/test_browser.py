"""The report in a real browser: no console errors, and it fits a phone."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.report import render_report
from autotune.run import read_run
from tests.runs import study, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]

OPEN_AT = """<!DOCTYPE html><title>frame</title>
<iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>
<script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument;
  const width = svg => svg.getBoundingClientRect().width;
  const shown = [...page.querySelectorAll("figure svg")].filter(width);
  const smallest = shown.map(svg => width(svg) / svg.viewBox.baseVal.width);
  document.title = [page.documentElement.scrollWidth, shown.length, Math.min(...smallest)].join();
}});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_run(tmp_path_factory.mktemp("runs") / "study", *study(40))
    return render_report(read_run(path))


def opened(file: Path) -> tuple[str, list[str]]:
    """The page's final DOM and the lines of its console."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    profile = f"--user-data-dir={file.parent / 'profile'}"
    command = [str(CHROMIUM), *flags, profile, "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, f"file://{file}"], capture_output=True, text=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


def test_the_page_opens_without_a_word_on_the_console(page: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page)
    dom, console = opened(file)
    assert "The front" in dom
    assert console == []
    file.write_text(page.replace("</main>", "<script>nothing()</script></main>"))
    assert opened(file)[1] != []  # an error would have been seen


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_its_window_and_its_plots_keep_legible_text(
    page: str, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "frame.html"
    file.write_text(OPEN_AT.format(width=width, page=html.escape(page, quote=True)))
    dom, _ = opened(file)
    title = re.search(r"<title>([\d.,]+)</title>", dom)
    assert title is not None
    scroll_width, plots, scale = (float(part) for part in title[1].split(","))
    assert scroll_width <= width
    assert plots == 3  # one size of each
    assert scale * 10 >= 10  # text of 10 points is drawn with at least 10 pixels
