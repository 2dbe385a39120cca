import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.engine import make_url

from tests.ledger.postgres import postgres, postgres_folder

_DATABASES = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    programs = postgres_folder()
    if programs is None:
        pytest.skip("no Postgres on this machine: apt-get install postgresql")
    with postgres(programs) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/usage.db"
    return new_database(request.getfixturevalue("postgres_server"))


def new_database(server_url: str) -> str:
    """Make an empty database on a Postgres server, and return its URL."""
    server = make_url(server_url).set(drivername="postgresql+psycopg")
    name = f"ledger{next(_DATABASES)}"
    engine = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
