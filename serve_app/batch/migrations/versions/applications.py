"""The application that a batch was sent to."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Add the column. Open batches stay with the application that has the usual name."""
    op.add_column("batches", sa.Column("application", sa.String, nullable=False, server_default="tideserve"))
