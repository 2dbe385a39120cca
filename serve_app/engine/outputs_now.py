"""Hand an output of the engine on within the call that brings it, while its stream's reader only waits.

vLLM's front end puts each output into the collector of its request. That wakes a task, which takes it through
the generators of vLLM's handler and of ours: at 256 streams a third of the front end's time per token.
"""

from collections.abc import Callable
from typing import Any

from vllm.outputs import RequestOutput
from vllm.v1.engine.output_processor import RequestOutputCollector

HandOn = Callable[[RequestOutput], bool]


class _Collector(RequestOutputCollector):  # type: ignore[misc]  # vLLM has no types
    """One that spares its reader what `hand_on` takes."""

    hand_on: HandOn
    _awaited = False

    async def get(self) -> Any:
        """As vLLM's."""
        self._awaited = True
        try:
            return await super().get()
        finally:
            self._awaited = False

    def put(self, output: Any) -> None:
        """As vLLM's, unless the output can be handed on. What that raises is for this reader alone."""
        if self._awaited and self.output is None and isinstance(output, RequestOutput):
            try:
                if self.hand_on(output):
                    return
            except Exception as error:  # raised here, it would end every stream
                output = error
        super().put(output)


def hand_on_now(collector: RequestOutputCollector | None, hand_on: HandOn) -> None:
    """Offer what comes into `collector` to `hand_on` first, whenever its reader waits with nothing before it.

    `hand_on` returns whether the reader is to be spared the output.
    """
    if collector is not None:  # None for an engine that is not asynchronous
        # Methods of its own would tie it to itself, and only the garbage collector would free it.
        collector.__class__ = _Collector
        collector.hand_on = hand_on
