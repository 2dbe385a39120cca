"""The data plane's contract: the messages between an ingress replica and an engine replica.

An ingress replica keeps one TCP connection to every engine replica. Each side sends frames: four bytes of
length, big endian, then one of the messages below in MessagePack. The ingress begins with `Hello`, and sends
nothing else until the engine replica has greeted it with a `Beat`. Messages are arrays. A later version may
add fields with defaults at their ends, which other versions ignore. Another kind of message, or another
meaning of a field, needs another `VERSION`.

Each call is a stream with its own number. The call ends with the first of these:

- an `Answer` that is whole, or the `Piece` that is `last`, each with the reason if the engine is `lost`;
- a second `Answer` after a streamed one: the engine replica's own code failed;
- the ingress's `Cancel`, which gets no answer; pieces on the way are ignored;
- the end of the connection. If either side ends its direction, the other side closes the connection.
  The engine replica then aborts the calls, and the ingress replica continues them at other engine replicas.

Durations are in seconds, not negative, and measured by the sender's clock. A receiver counts on from the
message's arrival. Amounts are whole numbers from 0 to 2^63 - 1. Texts are UTF-8. Only the frame bounds their
length.
"""

import struct
from collections.abc import Sequence
from itertools import islice

import msgspec

from serve_app.settings.model_names import Adapter

LEAVING_S = 30.0
"""A replica takes requests until so many seconds before the announced end of its node. Then it drains."""


class Continuation(msgspec.Struct, array_like=True, frozen=True):
    """The delivered part of an answer, which other engines generated."""

    tokens: Sequence[Sequence[int]]
    """The ids of the delivered tokens, by sequence (vLLM's `index`): together at most 64 Ki."""
    created: int
    """`created` of the answer's events: whole seconds of Unix time; 0 for an answer that has none."""
    ttft_s: float
    """The time from the request's arrival at the ingress to its first event."""
    moves: int = 1
    """How often the stream has moved to another engine, this time included."""
    model_identity: str = ""
    """The model that generated the tokens (`weights.model_identity`). An engine of another identity answers
    409."""
    sizes: Sequence[Sequence[int]] = ()
    """The numbers of tokens in vLLM's outputs, by sequence and in order."""

    def outputs(self, sequence: int) -> list[list[int]]:
        """Return the delivered tokens of a sequence, divided as vLLM's handler got them.

        Some parsers of tool calls and reasoning emit other text after several tokens at once than after each
        of them. Tokens whose division is unknown come one by one.
        """
        rest = iter(self.tokens[sequence])
        sizes = self.sizes[sequence] if sequence < len(self.sizes) else ()
        outputs = [list(islice(rest, size)) for size in sizes]
        return [*filter(None, outputs), *([token] for token in rest)]

    def is_of(self, model_identity: str, vocabulary: int) -> bool:
        """Whether an engine of this model, with token ids below `vocabulary`, can continue it."""
        if self.model_identity != model_identity:
            return False
        return all(min(ids) >= 0 and max(ids) < vocabulary for ids in self.tokens if ids)


VERSION = 3
"""An ingress replica sends nothing to an engine replica of another version, which Ray is about to replace."""
LENGTH = struct.Struct(">I")
MOST_BYTES = (ord("A") << 24) - 1
"""The longest frame. Four letters of another protocol, read as a length, are longer. The largest body that
`http.max_body_bytes` can allow (1 GiB) fits, with 16 MiB beside it."""
HELLO_BYTES = 4 << 10
"""The longest frame of a caller that has not shown the token. A `Hello` has 69 bytes."""
GREETING_BYTES = 64 << 10
"""The longest frame of an engine replica that has not greeted."""
HELLO_S = 5.0
"""The time for a caller to show the token, the TLS handshake included. Then it is cut off."""
MOST_STRANGERS = 64
"""The most connections without the token at an engine replica. One more replaces the oldest."""
CREDIT_BYTES = 64 << 10
"""Bytes of a stream that an engine replica may send ahead of the client. Then only this stream waits. vLLM
merges the tokens generated meanwhile, at most the answer's `max_tokens`."""
BEAT_S = 0.5
"""The time between two `Beat`s of an engine replica."""

MOST_BLOCKS = 4096
"""The most blocks of a `Beat`'s prefixes, some 40 kB. They stand for as many prompt tokens as an engine
prefills in half a minute. An ingress replica does not learn of further blocks."""

ENGINE_DEAD = "engine_dead"
"""The engine core had died before the call came. The retry budget is not charged."""
ENGINE_DIED = "engine_died"
"""The engine core died by itself during the call, which may be the cause."""
ENGINE_KILLED = "engine_killed"
"""The engine core was killed during the call."""
LOSSES = (ENGINE_DEAD, ENGINE_DIED, ENGINE_KILLED)
"""The reasons for which an engine is lost. Another replica can continue its calls. In every other case the
answer stands, even if it is an error. An ingress treats an unknown reason as `ENGINE_DIED`."""


class Hello(msgspec.Struct, tag=0, array_like=True):
    """The first message of an ingress replica."""

    version: int
    token: str
    """The engine replica's token: 64 characters, which only Ray's control plane gives out."""


class Prefix(msgspec.Struct, array_like=True):
    """Hashes of the beginnings of a prompt, as `api.prompt_prefix` makes them."""

    blocks: list[int]
    """At most 256, each of 64 bits."""
    end: int
    """The hash of the whole prompt; 0 if the prompt is longer than the blocks reach."""


class Call(msgspec.Struct, tag=1, array_like=True):
    """A request."""

    stream: int
    """Chosen by the ingress, and new on its connection."""
    operation: str
    """One of `api.engine_client.OPERATIONS`; any other is answered with 404."""
    body: bytes
    """The client's JSON, unchanged, or a body of `api.upload`: at most `http.max_body_bytes`, and the fields
    of a form. Settings of the client, such as vLLM's `priority`, are only here."""
    request_id: str
    """1 to 256 printable ASCII characters."""
    waited_s: float
    """The time since its arrival at the ingress."""
    queued_s: float
    """The part of `waited_s` in which no replica could take the request."""
    continuation: Continuation | None = None
    """The delivered part of the answer; None for a request that begins."""
    traceparent: str = ""
    """The client's trace context, validated: 55 characters; "" if there is none."""
    tracestate: str = ""
    """The other header of the trace context, at most 16,447 characters; "" if there is none."""
    expected_cached_tokens: int | None = None
    """Prompt tokens that the ingress expects in this replica's prefix cache, over all sequences. None without
    an expectation. It is only for the request log."""
    prefix: Prefix | None = None
    """The hashes of the prompt, which the replica reports to other ingress replicas; None without hashes."""
    cache_salt: str = ""
    """The salt of the prefix cache: 64 characters from the client's API key; "" if clients share the cache.
    The body's own `cache_salt` counts too. See `api.api_keys`."""
    key: str = ""
    """The name of the client's API key; "" without keys."""
    lane: str = "standard"
    """One of `settings.caller.LANES`; any other counts as `standard`."""
    weight: float = 1.0
    """The key's weight within its lane."""
    lane_knob: float | None = None
    """See `Knobs.lane_knob`. The engine takes the newest one of each lane."""
    alias: str = ""
    """The name by which the client asked for the model; "" for the model's own name."""
    adapter: Adapter | None = None
    """The LoRA adapter; None for the model itself. The first use loads the adapter."""
    lost_s: float = 0.0
    """The part of `waited_s` that lost replicas cost."""
    budgets: tuple[str, ...] = ()
    """The names of the budgets that pay; see `Caller`."""


class Credit(msgspec.Struct, tag=2, array_like=True):
    """The ingress has forwarded so many bytes of a stream."""

    stream: int
    amount: int
    """Bytes of `Piece.data`. The engine replica may send so many more."""


class Cancel(msgspec.Struct, tag=3, array_like=True):
    """The ingress ends a stream. There is no answer."""

    stream: int


class TokenCounts(msgspec.Struct, array_like=True):
    """The tokens of an answer, over all sequences, as in the request log.

    A count is None if it is unknown, or without sequences. If the stream continues here, tokens of other
    engines count as prompt.
    """

    cached: int | None = None
    """Prompt tokens that the engine found in its prefix cache."""
    prompt: int | None = None
    """All prompt tokens; None for several sequences."""
    input: int | None = None
    """Prompt tokens of all sequences."""
    output: int | None = None
    """Generated tokens of all sequences."""


class Answer(msgspec.Struct, tag=4, array_like=True):
    """The first message of a call's answer. If the answer is whole, it is the only one."""

    stream: int
    status: int
    """HTTP status, 200 to 599."""
    headers: dict[str, str]
    """HTTP headers. An ingress forwards only `Retry-After`."""
    body: bytes
    """JSON; empty if pieces follow."""
    streamed: bool = False
    """Whether pieces follow: whole SSE frames."""
    continuable: bool = False
    """Whether another engine can continue the stream, from the tokens in its pieces."""
    lost: str = ""
    """Which of `LOSSES` this answer is; "" for none. Always "" if pieces follow."""
    counts: TokenCounts | None = None
    """The tokens of a whole answer, or those that were computed before a failure; None if pieces follow."""
    prompts: TokenCounts | None = None
    """If pieces follow: the tokens of the prompts, without `output`. The client may leave before the end."""


class Piece(msgspec.Struct, array_like=True):
    """The part of a stream that one engine step adds."""

    stream: int
    data: bytes
    """Whole SSE frames, or nothing. At most `CREDIT_BYTES` are on the way without a `Credit`, except that the
    last frames may exceed the bound."""
    tokens: list[tuple[int, list[int]]] = []
    """Pairs of a sequence and ids of its tokens, one pair for each output of vLLM. All events of these tokens
    have been sent, in this piece or before."""
    last: bool = False
    """Whether it ends the stream."""
    lost: str = ""
    """In the last piece: which of `LOSSES` ended the stream; "" for none. If it is not "", the data are the
    error event for a client whose stream cannot continue elsewhere."""
    counts: TokenCounts | None = None
    """The tokens of the stream, in its last piece."""


class Step(msgspec.Struct, tag=5, array_like=True):
    """The pieces of all streams of a connection that one engine step made."""

    pieces: list[Piece]


class Beat(msgspec.Struct, tag=6, array_like=True):
    """A heartbeat, sent every `BEAT_S`. Its absence means that the engine replica's process stands still."""

    trouble: str
    """Why the replica takes no requests now, for people; "" if it takes requests."""
    still_s: float = 0.0
    """How long its engine has taken no step, if that is the trouble; else 0."""
    prefix_cache_tokens: int | None = None
    """The size of its prefix cache in tokens: 0 if it has none, None if not reported."""
    prefixes: list[Prefix] = []
    """The prefixes of other ingress replicas' calls since the last `Beat`, in order. Only the latest are
    sent, at most `MOST_BLOCKS` blocks in all."""
    step_tokens: int | None = None
    """The most tokens of one step of its engine; None if not reported."""
    adapters: list[str] = []
    """The names of the adapters that its engine has loaded or is loading."""
    adapter_load_s: float = 0.0
    """The time for which a load of an adapter occupies its engine, as a mean; 0 before the first load."""
    first_runs_left: list[str] = []
    """The kinds of requests that its engine has not run yet, and whose first may take minutes."""
    unwritten_s: float = 0.0
    """How long its usage has been waiting for the ledger's database; 0 if the database answers."""
    ends_in_s: float | None = None
    """The seconds until its node is taken away; None if no end is announced."""


class Refusal(msgspec.Struct, tag=7, array_like=True):
    """Why the engine replica closes the connection."""

    reason: str
    """For people."""


FromIngress = Hello | Call | Credit | Cancel
FromEngine = Answer | Step | Beat | Refusal
