"""What went wrong with the Hugging Face hub, in words, and whether another try may do better."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


class HubError(Exception):
    """One line for the log."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent
        """Whether no other try can do better until somebody changes something."""


def no_room(folder: Path, missing: int, free: int) -> HubError:
    """A volume that is too small, told before hours of loading. Sizes in bytes."""
    return HubError(
        f"{folder}: {missing / 1e9:.1f} GB are to be loaded, and {free / 1e9:.1f} GB are free; "
        "nothing has been loaded",
        permanent=True,
    )


def hub_error(wanted: str, error: Exception) -> HubError:
    """`error`, as the hub's client raised it about the repository `wanted`."""
    token = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "HF_TOKEN, which is not set,"
    match error:
        case GatedRepoError():
            words = (
                "is gated: accept its terms on its page on the hub with the account whose token "
                f"{token} holds"
            )
        case RepositoryNotFoundError():
            words = f"is not at {constants.ENDPOINT}, or is private and {token} does not open it"
        case RevisionNotFoundError():
            words = "has no such revision"
        case DisabledRepoError():
            words = "has been disabled by its owner or the hub"
        case HFValidationError():
            words = f"is no name of a repository: {error}"
        case OfflineModeIsEnabled():
            words = "cannot be looked up: HF_HUB_OFFLINE is set"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            words = f"is refused by the hub ({error.response.status_code}): {token} does not open it"
        case OSError(errno=code) if code in _NO_ROOM:
            words = "found no room: the volume is full"
        case OSError(errno=code) if code in _NOT_OURS:
            words = f"cannot be written to {error.filename}: {error.strerror}"
        case _:
            words = " ".join(str(error).split())  # the hub's client takes several lines
            return HubError(f"{wanted}: {type(error).__name__}: {words}", permanent=False)
    return HubError(f"{wanted}: {words}", permanent=True)
