"""What an answer from a replica's port means that is neither a reply nor a stream of its engine."""

import logging
from http import HTTPStatus

from aiohttp import ClientResponse

from serve_app.api.errors import internal_error
from serve_app.ingress.replica_choice import Replica

logger = logging.getLogger("ray.serve")


class NeverBegunError(ConnectionError):
    """The replica was gone before the request could reach an engine."""


def not_an_answer(response: ClientResponse, replica: Replica) -> Exception:
    """The error for what is no answer of a data plane: those are JSON or events, and let our token in.

    It is our own fault there, or comes from another process, which has the port of a replica that is gone.
    """
    if response.status == HTTPStatus.INTERNAL_SERVER_ERROR:  # what aiohttp says for a handler that raised
        logger.error("the data plane at %s failed; its replica's log says why", replica.address)
        return internal_error()
    replica.failures += 1  # or it would always have the least load, and be tried again and again
    if response.status == HTTPStatus.FORBIDDEN:
        return NeverBegunError(f"{replica.address} is no longer this replica's")
    return NeverBegunError(f"{replica.address} answers with {response.status} {response.content_type}")


def raise_if_dead(body: bytes, replica: Replica) -> None:
    """Raise ConnectionError if `body` says that the replica's engine core is dead."""
    if b'"engine_dead"' in body:
        replica.failures += 1
        raise NeverBegunError("the replica's engine core was dead already")
    if b'"engine_died"' in body:
        raise ConnectionError("the replica's engine core died")
