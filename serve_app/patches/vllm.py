"""Changes to vLLM, in the processes of an engine. A name that varies between releases is in `vllm_compat`."""

import gc
import importlib
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import wraps
from importlib.util import find_spec
from typing import Any

from vllm.entrypoints.generate.base import protocol as structural_tag_module
from vllm.exceptions import VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams, check_json_nesting
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from serve_app.patches.torch import one_gloo_device, permit_amx

Forward = Callable[[RequestOutput], bool]
Method = Callable[..., Any]
Wrapper = Callable[[Method], Method]

_NAMED_BY = (
    "entrypoints.openai.responses.serving",
    "entrypoints.openai.responses.streaming_events",
    "entrypoints.openai.responses.utils",
    "entrypoints.openai.responses.harmony",
    "renderers.chat_utils",
)
"""The modules that call `random_uuid` for an answer."""

_CHAT_ERROR, _MESSAGE_ERROR = 'data: {"error"', "event: error\n"
"""The starts of the frames in which vLLM reports an error in a chat and in a message."""
_THINKING = '"content_block":{"type":"thinking","thinking":""'

validate_structured_outputs: Method = SamplingParams._validate_structured_outputs
"""vLLM's own check, as it was before `skip_structured_output_checks`."""


class InProcessExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM has no types
    """Runs the model in the process of the engine core, with one thread for all gloo process groups.

    Every engine on a CPU or on one GPU has it, unless its `engine_args` name another one.

    vLLM imports this class by its path, `serve_app.patches.vllm.InProcessExecutor`.
    """

    def _init_executor(self) -> None:
        compute_adapters_apart()
        permit_amx()
        with one_gloo_device():
            super()._init_executor()

    def shutdown(self) -> None:
        """Release the model without a search for garbage, because the process of the engine core ends now.

        vLLM collects garbage three times and the interpreter once more when it ends. Each time they search
        all objects that a zygote has imported, for 4.3 s in which a drained replica holds its GPU.
        """
        gc.freeze()
        gc.unfreeze = lambda: None
        super().shutdown()


class _Collector(RequestOutputCollector):  # type: ignore[misc]  # vLLM has no types
    """A collector that gives outputs to `forward` before it wakes its reader."""

    forward: Forward
    _awaited = False

    async def get(self) -> Any:
        self._awaited = True
        try:
            return await super().get()
        finally:
            self._awaited = False

    def put(self, output: Any) -> None:
        if self._awaited and self.output is None and isinstance(output, RequestOutput):
            try:
                if self.forward(output):
                    return
            except Exception as error:  # raised here, the error would end every stream
                output = error
        super().put(output)


def forward_at_once(collector: RequestOutputCollector | None, forward: Forward) -> None:
    """Offer each output to `forward` within the call that brings it, unless older outputs wait.

    vLLM's front end puts each output into the collector of its request. That wakes a task, which takes the
    output through the generators of vLLM's handler and of ours: at 256 streams, a third of the front end's
    time per token. `forward` returns whether the reader must not get the output.
    """
    if collector is not None:  # None for an engine that is not asynchronous
        # Methods on the instance would refer to the instance, and only the garbage collector would free it.
        collector.__class__ = _Collector
        collector.forward = forward


def wrap_method(owner: Any, name: str, wrapper: Wrapper) -> None:
    """Replace the method `name` of one of vLLM's objects. Other objects of its class keep theirs."""
    replaced = getattr(owner, name)
    setattr(owner, name, wraps(replaced)(wrapper(replaced)))


def raise_generation_errors(handler: Any) -> None:
    """Have this Responses handler raise the error of a failed generation: vLLM fails to make it an event."""

    def fail(error: Exception) -> None:
        raise error

    with suppress(AttributeError):  # other releases have no such method
        wrap_method(handler, "_convert_generation_error_to_streaming_response", lambda _: fail)


def keep_chat_errors(handler: Any) -> None:
    """Have this Messages handler end a failed stream with the chat's own error frame.

    That frame has the error's status and field. vLLM cannot convert the frame, and would report that the
    frame has no `choices`. A thinking block gets its `signature` at once, which Anthropic's types require.
    """

    def keep(convert: Method) -> Method:
        async def events(chat: AsyncGenerator[str]) -> AsyncGenerator[str]:
            failure = ""

            async def until_failure() -> AsyncGenerator[str]:
                nonlocal failure
                async for frame in chat:
                    if frame.startswith(_CHAT_ERROR):
                        failure = frame
                        return
                    yield frame

            async with aclosing(chat):
                async for event in convert(until_failure()):
                    if event.startswith(_MESSAGE_ERROR):
                        raise RuntimeError(f"vLLM could not convert a chat completion: {event}")
                    yield event.replace(_THINKING, _THINKING + ',"signature":""')
                if failure:
                    yield failure

        return events

    wrap_method(handler, "message_stream_converter", keep)


def read_speech(handler: Any) -> None:
    """Have this handler read audio without PyAV, and name the form's field in errors about the audio.

    vLLM reads most kinds of audio with soundfile, and resamples them with PyAV only.
    """
    if find_spec("av") is None:
        with suppress(ModuleNotFoundError, AttributeError):  # other releases resample in other ways
            soxr = importlib.import_module("vllm.multimodal.audio").resample_audio_soxr
            vars(importlib.import_module("vllm.multimodal.media.audio"))["resample_audio_pyav"] = soxr

    def named(decode: Method) -> Method:
        async def wrapped(data: bytes) -> Any:
            try:
                return await decode(data)
            except ValueError as error:
                raise VLLMValidationError(str(error), parameter="file") from error

        return wrapped

    with suppress(AttributeError):  # other releases have no such method
        wrap_method(handler, "_decode_and_chunk_speech_async", named)


def replace_random_ids(wrapper: Wrapper) -> None:
    """Replace the function that names the items of a response and the calls of tools, in this process."""
    for module in _NAMED_BY:
        with suppress(ModuleNotFoundError, AttributeError):  # other releases name items elsewhere
            wrap_method(importlib.import_module(f"vllm.{module}"), "random_uuid", wrapper)


def skip_structured_output_checks() -> None:
    """Keep vLLM from parsing grammars on the event loop, once a compile sandbox checks them.

    vLLM parses a regular expression for up to 5 s, and any other grammar without a bound. Requests whose
    backend is marked as validated (`mark_validated`) are not parsed again; vLLM checks others.
    """
    SamplingParams._validate_structured_outputs = _validate_unless_marked
    structural_tag_module.validate_structural_tag_payload = _check_tag_without_compiling


@wraps(validate_structured_outputs)
def _validate_unless_marked(self: SamplingParams, model: Any, config: Any, tokenizer: Any) -> None:
    given = self.structured_outputs
    if given is not None and given._backend is None:
        validate_structured_outputs(self, model, config, tokenizer)


def _check_tag_without_compiling(payload: Any, *, parameter: str) -> None:
    """vLLM compiles a structural tag while it parses a body; the compile sandbox does that instead."""
    if not isinstance(payload, str) or not payload:
        raise VLLMValidationError(f"Invalid {parameter} structural_tag specification.", parameter=parameter)
    check_json_nesting(payload, structural_tag=True)


def mark_validated(params: Any, backend: str, *, automatic: bool) -> None:
    """Mark structured output parameters as vLLM's own check does: with the backend it chose."""
    params._backend, params._backend_was_auto = backend, automatic


def validated_backend(params: Any) -> tuple[str, bool]:
    """Return the backend that vLLM's check chose, and whether the choice was automatic."""
    return params._backend, params._backend_was_auto


def split_prompts_in_workers(outputs_in_prompt: Callable[[Any], int]) -> None:
    """Have vLLM's first model runner treat the end of a new request's prompt as outputs.

    The second model runner receives prompts and outputs apart. `outputs_in_prompt` returns the number of
    output tokens at the end of the prompt, from the request's sampling parameters.
    """
    from vllm.v1.worker.gpu_input_batch import CachedRequestState  # noqa: PLC0415  27 ms

    post_init = CachedRequestState.__post_init__

    def split(state: Any) -> None:
        if count := outputs_in_prompt(state.sampling_params):
            state.output_token_ids = state.prompt_token_ids[-count:]
            state.prompt_token_ids = state.prompt_token_ids[:-count]
        post_init(state)

    CachedRequestState.__post_init__ = split


def compute_adapters_apart() -> None:
    """Have vLLM compute LoRA adapters on a CPU as `cpu_lora` does. GPUs have other kernels."""
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415

    CpuPlatform.get_punica_wrapper = staticmethod(lambda: "serve_app.patches.cpu_lora.PerAdapterWrapper")


def register_kernels_once() -> None:
    """Have vLLM replace its Triton kernels by the CPU's now, and not in each engine core: 0.3 s of CPU.

    A second registration would repeat all work, with a warning for each kernel.
    """
    from vllm.platforms import current_platform  # noqa: PLC0415

    with suppress(AttributeError):  # other releases have no such method
        current_platform.register_triton_kernel_overrides()
        current_platform.register_triton_kernel_overrides = lambda: None


def free_shared_memory_early() -> None:
    """Have vLLM remove the name of a queue's shared memory once each reader of the queue has opened it.

    The kernel then frees the memory with the last process, however that ends. vLLM removes the name when the
    queue is deleted. So a killed worker left up to 240 MiB in `/dev/shm`, and too little was left to start.
    """
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue  # noqa: PLC0415

    wait = MessageQueue.wait_until_ready

    @wraps(wait)
    def wait_and_unlink(queue: Any) -> None:
        wait(queue)
        buffer = queue.buffer
        if buffer is not None and buffer.is_creator:
            buffer.is_creator = False
            buffer.shared_memory.unlink()

    MessageQueue.wait_until_ready = wait_and_unlink


def find_ray_again() -> None:
    """Have vLLM look for Ray again, after vLLM was imported in a process without Ray.

    Without Ray, vLLM refuses to run engines over several nodes.
    """
    if module := sys.modules.get("vllm.v1.executor.ray_utils"):
        importlib.reload(module)
