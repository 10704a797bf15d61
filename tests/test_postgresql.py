"""Studies in a real PostgreSQL: searched, resumed, lost, and never mixed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from autotune.errors import InputError
from autotune.ownership import create_own
from autotune.run import read_run
from autotune.rundir import RunDir
from autotune.show import show_document
from autotune.storage import open_storage, study_url
from tests.postgres import PASSWORD, Postgres, postgres_programs, running_postgres
from tests.searching import Study, ended, only_line, study_in, wait_for
from tests.test_dashboard import fetched, served

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.skipif(postgres_programs() is None, reason="needs PostgreSQL"),
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test opened in this process, as its end would."""
    opened: list[Any] = []

    def note(connection: Any, _record: Any) -> None:
        opened.append(connection)

    event.listen(Pool, "connect", note)
    yield
    event.remove(Pool, "connect", note)
    for connection in opened:
        connection.close()


def impatient(study: Study, *options: str) -> subprocess.Popen[str]:
    """`autotune search` that waits a second for a database instead of half a minute."""
    code = (
        "import autotune.storage as s; s._RESTART_PATIENCE_S = 1.0; "
        "from autotune.cli import main; main()"
    )
    space, run = str(study.folder / "small.yaml"), str(study.run)
    return subprocess.Popen(
        [sys.executable, "-c", code, "search", space, "--simulate", "--run-dir", run, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def files_with_the_password(study: Study) -> list[Path]:
    files = [path for path in study.run.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [path for path in files if b"ct-horse" in path.read_bytes()]


def connected_processes(server: Postgres) -> set[int]:
    """The processes that hold a connection of autotune's to the server."""
    rows = server.execute(
        "SELECT client_port FROM pg_stat_activity WHERE application_name = 'autotune'"
    )
    ports = {port for (port,) in rows}
    links = psutil.net_connections("tcp")
    return {link.pid for link in links if link.laddr and link.laddr.port in ports and link.pid}


# -- a study in PostgreSQL -------------------------------------------------------------------
@pytest.fixture(scope="module")
def searched(
    postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Study, str, set[int], int]:
    """A finished study, its URL, the processes that were connected meanwhile, the driver's."""
    study, url = study_in(tmp_path_factory.mktemp("postgres")), postgres.new_database("studies")
    driver = study.start("--storage", url)
    connected: set[int] = set()

    def seen() -> bool:
        connected.update(connected_processes(postgres))
        return driver.poll() is not None

    try:
        while not seen():
            time.sleep(0.2)
    finally:
        status, output = ended(driver)
    assert status == 0, output
    return study, url, connected, driver.pid


def test_only_the_driver_is_connected(searched: tuple[Study, str, set[int], int]) -> None:
    _, _, connected, driver = searched
    assert connected == {driver}


def test_the_password_is_nowhere_in_the_run(searched: tuple[Study, str, set[int], int]) -> None:
    study = searched[0]
    assert not files_with_the_password(study)
    assert json.loads((study.run / "storage.json").read_text())["url"].startswith(
        "postgresql://autotune:***@127.0.0.1:"
    )


def test_the_dashboard_reads_it_from_postgresql(
    searched: tuple[Study, str, set[int], int],
) -> None:
    study, url, *_ = searched
    with served(study.run, "--storage", url) as address:
        (summary,) = json.loads(fetched(f"{address}/api/studies"))["study_summaries"]
        trials = json.loads(fetched(f"{address}/api/studies/{summary['study_id']}"))["trials"]
    assert summary["study_name"] == "small"
    told = [outcome["values"] for outcome in study.outcomes()]
    assert [trial["values"] for trial in trials if trial["state"] == "Complete"] == [
        [pytest.approx(value) for value in values.values()] for values in told
    ]
    assert trials[0]["artifacts"]


def test_a_second_search_of_the_same_name_is_refused_and_changes_nothing(
    searched: tuple[Study, str, set[int], int], tmp_path: Path
) -> None:
    study, url, *_ = searched
    before = optuna.load_study(study_name="small", storage=open_storage(url)).trials
    status, output = study_in(tmp_path / "other").search("--storage", url)
    assert status == 2
    assert f"already holds a study named small (of {os.uname().nodename}:{study.run})" in only_line(
        output
    )
    assert optuna.load_study(study_name="small", storage=open_storage(url)).trials == before


def test_it_is_resumed_with_the_password_given_again(
    searched: tuple[Study, str, set[int], int],
) -> None:
    study, url, *_ = searched
    first = study.outcomes()
    status, output = study.search("--resume", "--trials", "3")
    assert status == 2
    assert "whose password was not stored; give the whole URL" in only_line(output)
    status, output = study.search("--resume", "--trials", "3", "--storage", url)
    assert status == 0, output
    assert study.outcomes()[: len(first)] == first
    assert len(study.outcomes()) == 3
    trials = optuna.load_study(study_name="small", storage=open_storage(url)).trials
    assert [trial.state.name for trial in trials].count("COMPLETE") == 3


# -- a server that fails ---------------------------------------------------------------------
def test_a_server_that_dies_ends_the_search_and_resume_continues(
    postgres: Postgres, tmp_path: Path
) -> None:
    study, url = study_in(tmp_path), postgres.new_database("dying")
    driver = impatient(study, "--storage", url)
    wait_for(study.outcomes, driver)
    postgres.die()
    try:
        status, output = ended(driver)
        assert status == 4
        line = only_line(output)
        assert "the study's storage failed: " in line
        assert "what was measured is kept, --resume continues" in line
        assert PASSWORD not in output
        assert not study.left()
        measured = [outcome for outcome in study.outcomes() if outcome["state"] == "ok"]
        assert measured
        assert show_document(read_run(study.run))["front"]  # no database is needed to look
    finally:
        postgres.start()
    status, output = study.search("--resume", "--storage", url)
    assert status == 0, output
    outcomes = study.outcomes()
    assert [o for o in outcomes if o["number"] in {m["number"] for m in measured}] == measured
    assert len([o for o in outcomes if o["state"] == "ok"]) == 2


def test_a_server_that_restarts_is_waited_for_and_a_password_may_stay_out_of_the_url(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    study, url = study_in(tmp_path), postgres.new_database("restarting")
    url = url.replace(f":{PASSWORD}", "")
    driver = study.start("--storage", url)
    wait_for(lambda: study.phase() == "load", driver)
    postgres.die()
    try:
        wait_for(study.outcomes, driver)  # the trial ended, and could not be told
    finally:
        postgres.start()
    status, output = ended(driver)
    assert status == 0, output
    assert [outcome["state"] for outcome in study.outcomes()] == ["ok", "ok"]
    assert study_url(study.run) == url  # --resume needs no --storage
    assert not files_with_the_password(study)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"password": "guessed"}, 'password authentication failed for user "autotune"'),
        ({"database": "absent"}, 'database "absent" does not exist'),
    ],
)
def test_a_url_that_does_not_fit_is_one_line_without_its_password(
    postgres: Postgres, wrong: dict[str, str], says: str
) -> None:
    with pytest.raises(InputError) as told:
        open_storage(postgres.url(**{"database": "postgres", **wrong}))
    assert says in str(told.value)
    assert "\n" not in str(told.value)
    assert wrong.get("password", PASSWORD) not in str(told.value)


def test_of_drivers_that_start_together_in_an_empty_database_one_gets_the_name(
    postgres: Postgres, tmp_path: Path
) -> None:
    url, gate = postgres.new_database("together"), threading.Barrier(6)
    ends: list[str] = []

    def start(number: int) -> None:
        run = RunDir(tmp_path / str(number))
        run.create()
        gate.wait()
        try:
            create_own(run, url, "one", optuna.samplers.RandomSampler())
            ends.append("made")
        except InputError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends.count("made") == 1, ends
    assert len([end for end in ends if "already holds a study named one" in end]) == 5, ends
