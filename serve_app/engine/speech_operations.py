"""Transcriptions and translations of speech on vLLM's handlers."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

from serve_app.api.errors import invalid_value, unsupported_feature
from serve_app.api.upload import fields_of, file_of
from serve_app.engine.chat_operations import ReplyOrFrames, Serving, ask
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.number_bounds import check_sampling
from serve_app.engine.request_body import RequestModel


class _Transcription(TranscriptionRequest):  # type: ignore[misc]  # vLLM has no types
    file: None = None  # which vLLM's handlers get as bytes


class _Translation(TranslationRequest):  # type: ignore[misc]
    file: None = None


SPEECH: dict[str, tuple[str, RequestModel]] = {
    "transcriptions": ("transcription", RequestModel(_Transcription)),
    "translations": ("translation", RequestModel(_Translation)),
}
"""The operations of `transcribe`: vLLM's name and the fields. A model supports both or none."""


async def transcribe(serving: Serving, call: EngineCall) -> ReplyOrFrames:
    """Run one of `SPEECH`. Returns a reply, or the frames of a stream.

    Raises:
        ApiError: 400 for a field out of bounds, a file that is no audio, or a model that takes no speech.
    """
    name, fields = SPEECH[call.message.operation]
    handler = serving.handler(f"openai_serving_{name}", "transcriptions and translations of speech")
    if not (find_spec("soundfile") or find_spec("av")):
        raise unsupported_feature("speech until its engine has the Python packages soundfile and soxr")
    request = serving.parse(call, fields, fields_of(call.message.body))
    check_sampling(request, 1, serving.max_sequences, serving.vocabulary)
    _check_choices(handler.model_cls, request)
    create = partial(getattr(handler, f"create_{name}"), file_of(call.message.body))
    return await ask(create, request, call)


def _check_choices(model: Any, request: Any) -> None:
    """Refuse values that vLLM refuses without naming the field."""
    formats = ["json", "text"]
    if not request.stream:
        formats += ["verbose_json"] * model.supports_segment_timestamp
        formats += ["diarized_json"] * getattr(model, "supports_diarized_transcription", False)
    if request.response_format not in formats:
        why = f"must be {' or '.join(map(repr, formats))}{' with stream = true' * bool(request.stream)}"
        raise invalid_value("response_format", request.response_format, why)
    if request.stream and getattr(request, "use_beam_search", False):
        raise invalid_value("use_beam_search", True, "has no streams")
    for name in ("language", "to_language"):
        if given := getattr(request, name, None):
            try:
                model.validate_language(given)
            except ValueError as error:
                raise invalid_value(name, given, str(error)) from error
