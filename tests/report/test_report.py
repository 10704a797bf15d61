"""The report is one valid HTML file without network, or Markdown, and says what was found."""

from __future__ import annotations

import os
import re
from pathlib import Path

import html5lib
import pytest

from autotune.errors import InputError
from autotune.records import PEAK, SINGLE, Override
from autotune.report import render_report, write_report
from autotune.report.effects import NOT_APPLICABLE, effects_of
from autotune.run import read_run
from autotune.rundir import RunDir
from tests.runs import baseline, failed, measured, study, write_run


@pytest.fixture(scope="module")
def study_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "study", *study(40))


@pytest.fixture(scope="module")
def page(study_path: Path) -> str:
    return Path(write_report(study_path)).read_text()


def text_of(page: str) -> str:
    """The page's visible words, on one line."""
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_the_page_is_valid_html(page: str) -> None:
    html5lib.HTMLParser(strict=True).parse(page)


def test_every_id_is_unique_and_every_link_inside_the_page_arrives(page: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert targets <= set(ids)


def test_nothing_is_fetched(page: str) -> None:
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "<script" not in page


@pytest.mark.parametrize("format", ["html", "md"])
def test_the_report_says_what_was_found(study_path: Path, format: str) -> None:
    run = read_run(study_path)
    text = text_of(render_report(run, format)).replace("\\", "")
    assert "54 trials, 48 measured, 6 infeasible" in text
    assert "Best single stream: 97.4 ± 1.0 tok/s, +58.6 % against the baseline (trial 27)" in text
    assert "Best peak: 2,392 ± 12 tok/s, +4.9 % against the baseline (trial 39)" in text
    assert "num_steps 0 → 3" in text  # what the fastest changes
    assert "CUDA out of memory" in text
    assert "NVIDIA RTX PRO 6000" in text
    assert "peak_concurrency" in text
    assert f"autotune export {study_path} --pick knee" in text
    assert "2,481" in text  # trial 39's first claim, beside what it is


@pytest.mark.parametrize(
    ("second", "titles"),
    [
        ((60, 2400), ["Fastest single stream, balanced", "Highest peak"]),
        ((99, 1600), ["Fastest single stream", "Balanced, highest peak"]),
        ((60, 1400), ["Best on both"]),  # nothing but the first is on the front
    ],
)
def test_a_card_has_the_names_of_all_picks_that_its_trial_is(
    tmp_path: Path, second: tuple[float, float], titles: list[str]
) -> None:
    """A reader looked for the balanced one, which was the fastest, and found no word of it."""
    best = measured(1, 100, 1500)
    run = read_run(write_run(tmp_path / "run", baseline(), best, measured(2, *second)))
    cards = re.findall(r"<h3>(.*?) <a", render_report(run))
    assert cards == titles


def test_markup_in_a_run_is_shown_as_text(tmp_path: Path) -> None:
    cause = "<script>alert('x')</script> & | `y`"
    outcomes = (baseline(), failed(1, cause=cause, params={"nccl_proto": "<b>"}))
    run = read_run(write_run(tmp_path / "run", *outcomes))
    page = render_report(run)
    html5lib.HTMLParser(strict=True).parse(page)
    assert "<script" not in page
    assert "<b>'" not in page
    assert "&lt;script&gt;" in page
    assert "\\<script>" in render_report(run, "md")


def test_a_setting_that_the_server_changed_is_listed(tmp_path: Path) -> None:
    override = Override(setting="max-running", asked=128, effective=48, source="server_info")
    warning = "max-running: asked 128, the server runs 48 (server_info)"
    outcome = baseline(overrides=(override,), warnings=(warning, "two answers were short"))
    text = text_of(render_report(read_run(write_run(tmp_path / "run", outcome))))
    assert "max-running: asked 128, the server ran 48 (server_info)" in text
    assert text.count("asked 128") == 1
    assert "two answers were short" in text


def test_a_warning_of_many_trials_is_one_line_though_its_figures_differ(tmp_path: Path) -> None:
    drifting = "the peak was still drifting at the end: {} tok/s"
    outcomes = [measured(n, 80, 1500, warnings=(drifting.format(1500 + n),)) for n in range(3)]
    text = text_of(render_report(read_run(write_run(tmp_path / "run", *outcomes))))
    assert text.count("still drifting") == 1
    assert "1500 tok/s trials 0, 1, 2; these are the figures of trial 0" in " ".join(text.split())


@pytest.mark.parametrize("format", ["html", "md"])
@pytest.mark.parametrize(
    "outcomes",
    [(), (failed(0),), (baseline(),), (measured(0, 80, 1500), failed(1))],
    ids=["empty", "nothing measured", "baseline only", "no baseline"],
)
def test_a_run_of_any_size_has_a_report(tmp_path: Path, outcomes, format: str) -> None:
    path = write_run(tmp_path / "run", *outcomes)
    RunDir(path).create_trial(9)
    text = render_report(read_run(path), format)
    if format == "html":
        html5lib.HTMLParser(strict=True).parse(text)
    assert "synthetic" in text


def test_a_thousand_trials_stay_under_two_megabytes(tmp_path: Path) -> None:
    written = Path(write_report(write_run(tmp_path / "run", *study(1000))))
    assert written.stat().st_size < 2_000_000


def test_a_report_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    with pytest.raises(InputError, match=r"--out: there is no folder") as error:
        write_report(path, "md", tmp_path / "no" / "report.md")
    assert "\n" not in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_read_only_run_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        write_report(path)


def test_an_unknown_format_names_the_known(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", baseline())
    with pytest.raises(InputError, match="unknown format 'pdf': one of html, md"):
        write_report(path, "pdf")


def test_effects_are_medians_by_value_with_counts(tmp_path: Path) -> None:
    outcomes = [baseline(100, 1000)]
    outcomes += [measured(n, 50 + n, 1000, params={"cuda_graph": False}) for n in (1, 2, 3)]
    run = read_run(write_run(tmp_path / "run", *outcomes))
    (effect,) = effects_of(run, SINGLE)
    assert effect.parameter == "cuda_graph"
    levels = [(level.label, level.count, level.median, level.best) for level in effect.levels]
    assert levels == [("false", 3, 52, 53), ("true", 1, 100, 100)]


def test_many_numbers_become_four_ranges_and_absence_a_level(tmp_path: Path) -> None:
    outcomes = [measured(n, 50 + n, 1000 + n, params={"fraction": n / 100}) for n in range(1, 21)]
    run = read_run(write_run(tmp_path / "run", baseline(), *outcomes))
    (effect,) = effects_of(run, PEAK)
    assert [level.count for level in effect.levels] in ([1, 5, 5, 5, 5], [5, 5, 5, 5, 1])
    assert NOT_APPLICABLE in [level.label for level in effect.levels]
