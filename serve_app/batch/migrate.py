"""Bring the tables to this release's version, with Alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from serve_app.database import exclusive

VERSION_TABLE = "batch_version"
_LOCK = 0x7469_6467
"""The number of the advisory lock for changes of tables."""


class NewerTablesError(Exception):
    """A newer release has changed the tables. This one must not write to them."""


def migrate(engine: Engine) -> None:
    """Make the tables, or convert those of an older release.

    Raises:
        NewerTablesError: they are of a newer release.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_current_head()
    with exclusive(engine, _LOCK) as connection:
        opts = {"version_table": VERSION_TABLE}
        present = MigrationContext.configure(connection, opts=opts).get_current_revision()
        if present == newest:
            return
        if present is not None and present not in {script.revision for script in scripts.walk_revisions()}:
            raise NewerTablesError(
                f"its tables have version {present}; this release knows versions up to {newest}"
            )
        config.attributes.update(connection=connection, version_table=VERSION_TABLE)
        command.upgrade(config, "head")
