"""The data plane's contract: what an ingress replica and an engine replica say to each other.

An ingress replica keeps one TCP connection to every engine replica. Each side sends frames: four bytes of
length, big endian, then one of the messages below in MessagePack. The ingress begins with `Hello`. A call is
a stream of its own number, which the ingress chooses; all pieces of one engine step travel in one `Step`.
Messages are arrays: a later version may add fields at their ends, and another kind of message makes another
`VERSION`.
"""

import struct

import msgspec

VERSION = 1
"""An ingress replica sends nothing to an engine replica of another version, which Ray is about to replace."""
LENGTH = struct.Struct(">I")
MOST_BYTES = 1 << 30
"""A longer frame is none of ours: four letters of another protocol make a longer one."""
CREDIT_BYTES = 64 << 10
"""What an engine replica may send of a stream before the ingress has passed it on. Then it waits, and vLLM
merges what it generates meanwhile, at most the answer's `max_tokens`; no other stream waits with it."""
BEAT_S = 0.5
"""Between two `Beat`s of an engine replica."""


class Hello(msgspec.Struct, tag=0, array_like=True):
    """The first message of an ingress replica."""

    version: int
    token: str
    """The engine replica's own, which only Ray's control plane hands out."""


class Sent(msgspec.Struct, array_like=True):
    """What a client has been sent of an answer by replicas that were lost; see `api.continuation`."""

    tokens: list[list[int]]
    created: int
    ttft_s: float
    moves: int


class Call(msgspec.Struct, tag=1, array_like=True):
    """A request."""

    stream: int
    operation: str
    body: bytes
    """Untouched, as the client sent it."""
    request_id: str
    waited_s: float
    """Since its arrival at the ingress."""
    held_s: float
    """The part of it for which no replica could take the request."""
    sent: Sent | None = None
    """None for a request that begins."""


class Credit(msgspec.Struct, tag=2, array_like=True):
    """The ingress has passed on so many bytes of a stream."""

    stream: int
    amount: int


class Cancel(msgspec.Struct, tag=3, array_like=True):
    """The ingress wants no more of a stream. It is not answered."""

    stream: int


class Answer(msgspec.Struct, tag=4, array_like=True):
    """The first of a call's answer, and all of it where no pieces follow."""

    stream: int
    status: int
    headers: dict[str, str]
    body: bytes
    """JSON."""
    streamed: bool = False
    """Whether pieces follow: whole SSE frames."""
    continuable: bool = False
    """Whether another engine can go on with the stream, from the tokens that come with its pieces."""


class Piece(msgspec.Struct, array_like=True):
    """What one step adds to a stream."""

    stream: int
    data: bytes
    """Whole SSE frames."""
    tokens: list[tuple[int, list[int]]] = []
    """Ids of tokens all of whose events have been sent, with these data or before, by sequence."""
    last: bool = False


class Step(msgspec.Struct, tag=5, array_like=True):
    """The pieces of all streams of a connection that one engine step made."""

    pieces: list[Piece]


class Beat(msgspec.Struct, tag=6, array_like=True):
    """Sent every `BEAT_S`: its absence means that the engine replica's process stands still."""

    trouble: str
    """Why the replica takes no requests now; "" if it does."""
    still_s: float = 0.0
    """For how long its engine has taken no step, if that is why."""


class Refusal(msgspec.Struct, tag=7, array_like=True):
    """Why the engine replica closes the connection."""

    reason: str


FromIngress = Hello | Call | Credit | Cancel
FromEngine = Answer | Step | Beat | Refusal
