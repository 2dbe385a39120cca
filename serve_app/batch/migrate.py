"""Bring the tables to this release's version, with Alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from serve_app.database import exclusive

VERSION_TABLE = "batch_version"
_LOCK = 0x7469_6467
"""The number of the advisory lock for changes of tables."""


class NewerTablesError(Exception):
    """A newer release has changed the tables. This one must not write to them."""


def migrate(engine: Engine, application: str, version: str = "head") -> None:
    """Make the tables, or convert those of an older release, up to a `version`.

    `application` gets the older files that no batch names.

    Raises:
        NewerTablesError: they are of a newer release.
    """
    config, scripts = _scripts()
    with exclusive(engine, _LOCK) as connection:
        if table_version(connection) != scripts.get_current_head():
            config.attributes.update(
                connection=connection, version_table=VERSION_TABLE, application=application
            )
            command.upgrade(config, version)


def table_version(connection: Connection) -> str | None:
    """Return the version of the tables; None without tables.

    Raises:
        NewerTablesError: they are of a newer release.
    """
    opts = {"version_table": VERSION_TABLE}
    present = MigrationContext.configure(connection, opts=opts).get_current_revision()
    _, scripts = _scripts()
    if present is not None and present not in {script.revision for script in scripts.walk_revisions()}:
        newest = scripts.get_current_head()
        raise NewerTablesError(
            f"its tables have version {present}; this release knows versions up to {newest}"
        )
    return present


def _scripts() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config, ScriptDirectory.from_config(config)
