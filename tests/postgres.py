"""A real PostgreSQL server for tests: Debian's package, started here, gone afterwards."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.machine import free_port

USER = "autotune"
PASSWORD = "corre/ct-horse"  # SQLAlchemy takes the slash; libpq's own URLs would not
_PR_SET_PDEATHSIG = 1


def postgres_programs() -> Path | None:
    """The folder of `initdb` and `postgres`, of the newest version installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@dataclass
class Postgres:
    """One server and its data; it listens on loopback only and asks for a password."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def make(self) -> None:
        """Make the data folder."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD + "\n")
        _give_away(self.folder, secret)
        command = [self.programs / "initdb", "--pgdata", self.folder / "data", "--no-sync"]
        options = ["--username", USER, "--pwfile", secret, "--auth", "scram-sha-256"]
        arguments = ["--encoding", "UTF8", "--locale", "C"]
        subprocess.run(
            [*command, *options, *arguments], check=True, capture_output=True, **_identity()
        )

    def start(self) -> None:
        """Start the server and wait until it takes connections; it dies with this process."""
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off")
        command = [self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(word for setting in settings for word in ("-c", setting))],
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                **_identity(),
            )
        end = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end

    def die(self) -> None:
        """End it as a crash does: connections are cut, nothing is said."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=60)
            self.process = None

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of one statement."""
        import psycopg

        place = {"host": "127.0.0.1", "port": self.port, "dbname": database}
        login = {"user": USER, "password": PASSWORD, "autocommit": True}
        with psycopg.connect("", **place, **login) as connection:  # type: ignore[arg-type]
            done = connection.execute(statement)  # type: ignore[call-overload]
            return list(done.fetchall()) if done.description else []

    def new_database(self, name: str) -> str:
        """Create an empty database; returns its URL."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def _answers(self) -> bool:
        import psycopg

        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            time.sleep(0.1)
            return False
        return True


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server with no databases of ours; needs `postgres_programs()`."""
    programs = postgres_programs()
    assert programs is not None
    # Not pytest's folder: that one is closed to the user whom the server runs as.
    folder = Path(tempfile.mkdtemp(prefix="autotune-postgres-"))
    server = Postgres(programs, folder, free_port())
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.die()
        shutil.rmtree(folder)


def _identity() -> dict[str, Any]:
    """PostgreSQL does not run as root: who it runs as, in the words of `subprocess`."""
    if os.geteuid() != 0:
        return {}
    account = _account()
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _give_away(*paths: Path) -> None:
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, _account().pw_uid, _account().pw_gid)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
