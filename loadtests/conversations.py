"""What became of the conversations of a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.record import Record


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations of which a turn was sent, by why they ended (`record.ConversationEnd`)."""

    conversations: int
    turns: int
    """Requests that are a turn of one."""
    whole: int
    context: int
    time: int
    unanswered: int
    cut_short: int
    """Under way when the run was interrupted."""


def conversations(records: Sequence[Record]) -> Conversations | None:
    """Those of a run; None if it had none."""
    turns = [record for record in records if record.session is not None]
    if not turns:
        return None
    count = len({record.session for record in turns})
    ends = Counter(record.conversation_end for record in turns if record.conversation_end)
    return Conversations(
        conversations=count,
        turns=len(turns),
        whole=ends["whole"],
        context=ends["context"],
        time=ends["time"],
        unanswered=ends["unanswered"],
        cut_short=count - ends.total(),
    )
