"""A replica's process: it serves one request after the other, and says what it used until it is killed."""

import sys

from serve_app.ledger.store import UsageStore
from serve_app.ledger.writer import UsageWriter
from tests.ledger.replica import FakeReplica


def main() -> None:
    """Write to the database of the first argument, with the key of the second."""
    url, key = sys.argv[1:]
    replica = FakeReplica()
    replica.serve()
    writer = UsageWriter(replica.meter, UsageStore(url), 1, wall=lambda: replica.now)
    answered = 0
    while True:
        call = replica.begin(key, prompt=10)
        replica.step(0.5, prefill=10, first=call)
        replica.end(call)
        writer.write()
        answered += 1
        print(answered, flush=True)  # the write has been committed


if __name__ == "__main__":
    main()
