"""The tables of files, batches and lines."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

_TIMES = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at")
_COUNTS = ("total", "completed", "failed", "input_tokens", "cached_tokens", "output_tokens")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "batch_files",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("purpose", sa.String, nullable=False),
        sa.Column("filename", sa.String, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("stored", sa.Boolean, nullable=False),
    )
    op.create_index("batch_files_of_owner", "batch_files", ["owner", "id"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("endpoint", sa.String, nullable=False),
        sa.Column("input_file_id", sa.String, nullable=False),
        sa.Column("completion_window", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("model", sa.String),
        sa.Column("output_file_id", sa.String),
        sa.Column("error_file_id", sa.String),
        sa.Column("output_expires_after", sa.BigInteger),
        sa.Column("errors", sa.JSON),
        sa.Column("metadata", sa.JSON),
        *(sa.Column(name, sa.BigInteger) for name in (*_TIMES, "cancelled_at")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*_COUNTS, "reasoning_tokens")),
    )
    op.create_index("batches_of_owner", "batches", ["owner", "id"])
    op.create_index("batches_by_status", "batches", ["status", "id"])
    op.create_index("batches_of_file", "batches", ["input_file_id"])
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True),
        sa.Column("custom_id", sa.String, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("length", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("outcome", sa.String),
        sa.Column("part", sa.String),
    )
    op.create_index("batch_lines_to_send", "batch_lines", ["batch_id", "outcome", "position"])
