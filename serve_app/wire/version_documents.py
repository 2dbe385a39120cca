"""The documents about versions: the shares in force, and the counts of their answers.

An operator or the policy writes a share, and each ingress replica reads it four times a second. Each ingress
replica writes its counts, and the policy compares them. Counts are sums since the start of the replica.
"""

from collections.abc import Mapping

import msgspec

from serve_app.wire.documents import erase, read_all, write
from serve_app.wire.versions import Share


def put_share(app: str, version: str, share: Share) -> None:
    """Store the share of a version."""
    write(f"share/{app}/{version}", msgspec.json.encode(share))


def read_shares(app: str) -> dict[str, Share]:
    """Return the stored shares by version."""
    return read_all(f"share/{app}/", msgspec.json.Decoder(Share).decode)


def forget_share(app: str, version: str) -> None:
    """Remove the share of a version that is no longer served."""
    erase(f"share/{app}/{version}")


class Counts(msgspec.Struct, frozen=True):
    """The counts of one ingress replica, written at Unix time `at`, by model or version."""

    at: float
    by_model: dict[str, dict[str, int]]


def put_counts(app: str, replica: str, at: float, by_model: Mapping[str, Mapping[str, int]]) -> None:
    """Store the counts of an ingress replica."""
    counts = Counts(at, {name: dict(each) for name, each in by_model.items()})
    write(f"canary/{app}/{replica}", msgspec.json.encode(counts))


def read_counts(app: str) -> dict[str, Counts]:
    """Return the counts by ingress replica."""
    return read_all(f"canary/{app}/", msgspec.json.Decoder(Counts).decode)


def forget_counts(app: str, replica: str) -> None:
    """Remove the counts of an ingress replica that is gone."""
    erase(f"canary/{app}/{replica}")
