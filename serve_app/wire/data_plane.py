"""The data plane's contract: what an ingress replica and an engine replica say to each other.

An ingress replica keeps one TCP connection to every engine replica. Each side sends frames: four bytes of
length, big endian, then one of the messages below in MessagePack. The ingress begins with `Hello`, and sends
nothing else until the engine replica has greeted it with a `Beat`. Messages are arrays: a later version may
add fields at their ends, which have defaults and which others pass over. Another kind of message, or another
meaning of a field, makes another `VERSION`.

A call is a stream of its own number. It ends with the first of these:

- an `Answer` that is whole, or the `Piece` that is `last`, each with the reason if the engine is `lost`;
- a second `Answer`, behind one that is streamed: the engine replica's own code failed;
- the ingress's `Cancel`, which is not answered; pieces on the way are passed over;
- the connection's end. Either side that ends its direction of it has left, and the other one ends it, too: an
  engine replica then aborts what it generates, an ingress replica has other engine replicas go on.

Durations are in seconds, not negative, and run on the clock of the process that sends them; a receiver counts
on from the message's arrival. Amounts are whole numbers from 0 to 2^63 - 1. Texts are UTF-8 without a bound
but that of the frame.
"""

import struct

import msgspec

from serve_app.wire.continuation import Continuation

VERSION = 1
"""An ingress replica sends nothing to an engine replica of another version, which Ray is about to replace."""
LENGTH = struct.Struct(">I")
MOST_BYTES = (ord("A") << 24) - 1
"""A longer frame is none of ours: four letters of another protocol make a longer one. There is room for the
largest body that `http.max_body_bytes` can allow, 1 GiB, and 16 MiB beside it."""
HELLO_BYTES = 4 << 10
"""A longer frame is not read from a caller that has not shown the token. A `Hello` has 69 bytes."""
GREETING_BYTES = 64 << 10
"""A longer frame is not read from an engine replica that has not greeted."""
HELLO_S = 5.0
"""A caller that has not shown the token by then is cut off, the TLS handshake included."""
MOST_STRANGERS = 64
"""Connections without the token that an engine replica keeps; one more takes the place of the oldest."""
CREDIT_BYTES = 64 << 10
"""Bytes of a stream that an engine replica may send ahead of the client. Then the stream waits, and vLLM
merges what it generates meanwhile, at most the answer's `max_tokens`; no other stream waits with it."""
BEAT_S = 0.5
"""Between two `Beat`s of an engine replica."""

MOST_BLOCKS = 4096
"""Blocks of the prefixes of a `Beat`, some 40 kB: as many prompt tokens as an engine prefills in half a
minute. An ingress replica does not expect the others."""

ENGINE_DEAD = "engine_dead"
"""The engine core had died before the call came. It costs nothing of the retry budget."""
ENGINE_DIED = "engine_died"
"""The engine core died by itself with the call on it, which may be the cause."""
ENGINE_KILLED = "engine_killed"
"""The engine core was killed with the call on it."""
LOSSES = (ENGINE_DEAD, ENGINE_DIED, ENGINE_KILLED)
"""Why an engine is lost. Another replica can go on with its calls; in every other case the answer stands, be
it an error or end with one. An ingress takes a reason that it does not know for `ENGINE_DIED`."""


class Hello(msgspec.Struct, tag=0, array_like=True):
    """The first message of an ingress replica."""

    version: int
    token: str
    """The engine replica's own, 64 characters, which only Ray's control plane hands out."""


class Prefix(msgspec.Struct, array_like=True):
    """Hashes of the beginnings of a prompt, as `api.prompt_prefix` makes them."""

    blocks: list[int]
    """At most 256, each of 64 bits."""
    end: int
    """The hash of the whole prompt; 0 where it is longer than the blocks reach."""


class Call(msgspec.Struct, tag=1, array_like=True):
    """A request."""

    stream: int
    """Chosen by the ingress, and new on its connection."""
    operation: str
    """One of `api.engine_client.OPERATIONS`; any other is answered with 404."""
    body: bytes
    """JSON, untouched, as the client sent it: at most `http.max_body_bytes`. What a client may set is in it
    and nowhere else, the `priority` of vLLM's scheduler, for one."""
    request_id: str
    """1 to 256 printable ASCII characters."""
    waited_s: float
    """Since its arrival at the ingress."""
    queued_s: float
    """The part of it for which no replica could take the request: at most `waited_s`."""
    continuation: Continuation | None = None
    """The delivered part of the answer; None for a request that begins."""
    traceparent: str = ""
    """The client's trace context, validated: 55 characters; "" if there is none. See `api.trace_context`."""
    tracestate: str = ""
    """Its other header, at most 16,447 characters; "" if there is none."""
    expected_cached_tokens: int | None = None
    """Prompt tokens that the ingress expects in this replica's prefix cache, over all sequences. None where
    it expects nothing in particular. The engine does nothing by it; the request log has it."""
    prefix: Prefix | None = None
    """The prompt that the replica is about to cache, for other ingress replicas; None without hashes."""
    cache_salt: str = ""
    """The salt of the prefix cache, 64 characters that follow from the client's API key, within which
    `cache_salt` of the body counts; "" where clients share the cache. See `api.api_keys`."""


class Credit(msgspec.Struct, tag=2, array_like=True):
    """The ingress has passed on so many bytes of a stream."""

    stream: int
    amount: int
    """Bytes of `Piece.data`, to be added to what the engine replica may send."""


class Cancel(msgspec.Struct, tag=3, array_like=True):
    """The ingress wants no more of a stream. It is not answered."""

    stream: int


class Answer(msgspec.Struct, tag=4, array_like=True):
    """The first message of a call's answer, and the only one where no pieces follow."""

    stream: int
    status: int
    """HTTP status, 200 to 599."""
    headers: dict[str, str]
    """HTTP headers. An ingress passes on `Retry-After` and no other."""
    body: bytes
    """JSON; empty where pieces follow."""
    streamed: bool = False
    """Whether pieces follow: whole SSE frames."""
    continuable: bool = False
    """Whether another engine can go on with the stream, from the tokens that come with its pieces."""
    lost: str = ""
    """Which of `LOSSES` this answer is; "" for none. Never where pieces follow."""
    cached_tokens: int | None = None
    """As `Piece.cached_tokens`, of an answer that is whole."""
    prompt_tokens: int | None = None
    """As `Piece.prompt_tokens`, of an answer that is whole."""


class Piece(msgspec.Struct, array_like=True):
    """The part of a stream that one engine step adds."""

    stream: int
    data: bytes
    """Whole SSE frames, or nothing. An engine replica has at most `CREDIT_BYTES` on the way that no `Credit`
    has come for, and the frames that went beyond it."""
    tokens: list[tuple[int, list[int]]] = []
    """Ids of tokens all of whose events have been sent, with these data or before, by sequence."""
    last: bool = False
    """Whether the stream ends with it."""
    lost: str = ""
    """Of the last one: which of `LOSSES` ended the stream; "" for none. Its data are then the error event for
    a client whose stream cannot go on elsewhere."""
    cached_tokens: int | None = None
    """Of the last one: the prompt tokens that the engine found in its prefix cache, over all sequences, as in
    the request log. None if it does not know, or never was asked to generate. What other engines generated of
    a stream that goes on here is prompt."""
    prompt_tokens: int | None = None
    """Of the last one: all prompt tokens, where `cached_tokens` is known; None for several sequences."""


class Step(msgspec.Struct, tag=5, array_like=True):
    """The pieces of all streams of a connection that one engine step made."""

    pieces: list[Piece]


class Beat(msgspec.Struct, tag=6, array_like=True):
    """Sent every `BEAT_S`: its absence means that the engine replica's process stands still."""

    trouble: str
    """Why the replica takes no requests now, for people to read; "" if it does."""
    still_s: float = 0.0
    """For how long its engine has taken no step, if that is why; else 0."""
    prefix_cache_tokens: int | None = None
    """The size of its prefix cache, in tokens: 0 where it has none, None where it is not reported."""
    prefixes: list[Prefix] = []
    """Those that calls of other ingress replicas came with since the last one, in their order; the latest of
    them that have at most `MOST_BLOCKS` blocks together."""
    step_tokens: int | None = None
    """The most tokens of one step of its engine; None where it is not reported."""


class Refusal(msgspec.Struct, tag=7, array_like=True):
    """Why the engine replica closes the connection."""

    reason: str
    """For people to read."""


FromIngress = Hello | Call | Credit | Cancel
FromEngine = Answer | Step | Beat | Refusal
