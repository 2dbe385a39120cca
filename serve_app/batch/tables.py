"""The tables of files, batches and their lines."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Index, Integer, MetaData, String, Table

from serve_app.database import Tables

TABLES = Tables("batches", 1, MetaData())

FILES = Table(
    "batch_files",
    TABLES.tables,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("application", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("filename", String, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("stored", Boolean, nullable=False),
    Index("batch_files_of_owner", "owner", "id"),
)
"""A row is made before its object and deleted after it, so no object is forgotten. Clients see a file while
`stored` is true."""

BATCHES = Table(
    "batches",
    TABLES.tables,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("application", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("input_file_id", String, nullable=False),
    Column("completion_window", String, nullable=False),
    Column("status", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("model", String),
    Column("output_file_id", String),
    Column("error_file_id", String),
    Column("output_expires_after", BigInteger),
    Column("errors", JSON(none_as_null=True)),
    Column("metadata", JSON(none_as_null=True)),
    *(
        Column(f"{name}_at", BigInteger)
        for name in (
            "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
        )
    ),
    *(
        Column(name, BigInteger, nullable=False)
        for name in (
            "total", "completed", "failed",
            "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens",
        )
    ),
    Index("batches_of_owner", "owner", "id"),
    Index("batches_by_status", "status", "id"),
    Index("batches_of_file", "input_file_id"),
)  # fmt: skip

LINES = Table(
    "batch_lines",
    TABLES.tables,
    Column("batch_id", String, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("custom_id", String, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("outcome", String),
    Column("part", String),
    Index("batch_lines_to_send", "batch_id", "outcome", "position"),
)
"""The lines of open batches. A line is free when `outcome` is null and `lease_until` (Unix time) has passed.
`outcome` is `completed` or `failed`, and `part` then names the object that has the answer. It is `lost` if
that object cannot be read at the end of the batch, and `none` if the batch ended before an answer. Only the
first `outcome` counts: a part may repeat a line that another part answered."""
