"""The application that a file was sent to."""

import sqlalchemy as sa
from alembic import context, op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Add the column. A file belongs to the application of its batch, else to the one that converts."""
    first = context.config.attributes["application"]
    op.add_column("batch_files", sa.Column("application", sa.String, nullable=False, server_default=first))
    columns = ("id", "application", "input_file_id", "output_file_id", "error_file_id")
    batches = sa.table("batches", *map(sa.column, columns))
    files = sa.table("batch_files", *map(sa.column, columns[:2]))
    connection = op.get_bind()
    for application in connection.execute(sa.select(batches.c.application).distinct()).scalars().all():
        for name in columns[2:]:
            named = sa.select(batches.c[name]).where(batches.c.application == application)
            change = files.update().where(files.c.id.in_(named)).values(application=application)
            connection.execute(change)
