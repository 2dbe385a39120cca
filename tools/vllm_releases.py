"""Check vLLM's sources for what the engine relies on: `python -m tools.vllm_releases FOLDER...`.

A folder is an unpacked source distribution or a `site-packages`: it has `vllm` in it. None of it is imported.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_SERVING = "vllm.entrypoints."
_MESSAGES = f"{_SERVING}anthropic.serving.AnthropicServingMessages"
APPLICATION = Path(__file__).parents[1] / "serve_app"

# By class or function: as the engine imports it, or with its module where the engine only gets to hold it.
CALLED = {
    # The parameters that are given, in vLLM's order. All others must have defaults.
    "make_arg_parser": "parser",
    "init_app_state": "engine_client state args supported_tasks",
    "create_error_response": "message",
    "choice_as_grammar": "choice",
    "get_structured_output_key": "params",
    "cached_tokenizer_from_config": "model_config",
    "freeze_gc_heap": "",
    "enable_envs_cache": "",
    "set_process_title": "name",
    "AsyncEngineArgs.from_cli_args": "args",
    "AsyncEngineArgs.create_engine_config": "",
    "AsyncLLM.from_vllm_config": "vllm_config stat_loggers disable_log_stats",
    "AsyncLLM.generate": "prompt sampling_params request_id lora_request trace_headers",
    "AsyncLLM.get_supported_tasks": "",
    "AsyncLLM.get_tokenizer": "",
    "AsyncLLM.check_health": "",
    "vllm.v1.engine.core_client.AsyncMPClient.call_utility_async": "method",
    "vllm.v1.engine.core.EngineCoreProc.has_work": "",
    "AsyncLLM.shutdown": "timeout",
    "AsyncLLM.add_request": "request_id prompt params",
    "vllm.renderers.base.BaseRenderer.render_cmpl_async": "prompts tok_params",
    "vllm.renderers.base.BaseRenderer._process_tokens": "prompt",
    "IncrementalDetokenizer.from_new_request": "tokenizer request",
    "IncrementalDetokenizer.update": "new_token_ids stop_terminated",
    "IncrementalDetokenizer.get_next_output_text": "finished delta",
    "AsyncLLM.abort": "request_id internal",
    "AsyncLLM.add_lora": "lora_request",
    "AsyncLLM.remove_lora": "lora_id",
    "OutputProcessor.add_request": "request prompt parent_req request_index queue",
    "OutputProcessor.abort_requests": "request_ids internal",
    "OutputProcessor.process_outputs": "engine_core_outputs engine_core_timestamp iteration_stats",
    "OpenAIServingChat.create_chat_completion": "request raw_request",
    "OpenAIServingChat.get_chat_request_role": "request",
    "OpenAIServingChat._raise_if_error": "finish_reason request_id",
    "OpenAIServingChat.create_streaming_error_response": "message",
    f"{_SERVING}openai.completion.serving.OpenAIServingCompletion.create_completion": "request raw_request",
    f"{_MESSAGES}.create_messages": "request raw_request",
    f"{_MESSAGES}.count_tokens": "request raw_request",
    f"{_SERVING}openai.responses.serving.OpenAIServingResponses.create_responses": "request raw_request",
    f"{_SERVING}serve.tokenize.serving.ServingTokenization.create_tokenize": "request raw_request",
    f"{_SERVING}serve.tokenize.serving.ServingTokenization.create_detokenize": "request raw_request",
    f"{_SERVING}pooling.embed.serving.ServingEmbedding.__call__": "request raw_request",
    f"{_SERVING}pooling.classify.serving.ServingClassification.__call__": "request raw_request",
    f"{_SERVING}pooling.pooling.serving.ServingPooling.__call__": "request raw_request",
    "StructuredOutputBackend.compile_grammar": "request_type grammar_spec",
    "StructuredOutputBackend.allocate_token_bitmask": "max_num_seqs",
    "StructuredOutputGrammar.fill_bitmask": "bitmask batch_index",
    "StructuredOutputGrammar.accept_tokens": "request_id tokens",
    "StructuredOutputGrammar.is_terminated": "",
    "check_stop": "request max_model_len",
    "Request.from_engine_core_request": "request block_hasher",
    "Request.append_output_token_ids": "token_ids",
    "Request.get_finished_reason": "",
}
REPLACED = {
    # The engine puts its own in their place, or overrides them: these parameters and no others.
    "StatLoggerBase.record": "scheduler_stats iteration_stats mm_cache_stats engine_idx",
    "StatLoggerBase.log_engine_initialized": "",
    "UniProcExecutor._init_executor": "",
    "vllm.distributed.device_communicators.shm_broadcast.MessageQueue.wait_until_ready": "",
    "MediaConnector.load_from_url": "url media_io fetch_timeout",
    "MediaConnector.load_from_url_async": "url media_io fetch_timeout",
    "HTTPConnection.get_async_client": "",
    "SamplingParams._validate_structured_outputs": "model_config structured_outputs_config tokenizer",
    f"{_SERVING}generate.base.protocol.validate_structural_tag_payload": "payload parameter",
    f"{_MESSAGES}.message_stream_converter": "generator",
    "WorkerLoRAManager._load_adapter": "lora_request",
    f"{_SERVING}openai.models.serving.OpenAIModelRegistry.is_base_model": "model_name",
    f"{_SERVING}openai.models.serving.OpenAIServingModels.model_name": "lora_request",
    "OpenAIServingChat.chat_completion_stream_generator": (
        "request result_generator request_id model_name conversation tokenizer request_metadata "
        "chat_template_kwargs mm_token_counts"
    ),
}
MEMBERS = {
    "AsyncEngineArgs": (
        "model revision tokenizer dtype quantization tensor_parallel_size pipeline_parallel_size "
        "gpu_memory_utilization kv_cache_memory_bytes load_format max_model_len max_num_batched_tokens "
        "max_num_seqs enable_prefix_caching enforce_eager scheduling_policy trust_remote_code "
        "reasoning_parser served_model_name disable_log_stats enable_logging_iteration_details "
        "enable_log_requests otlp_traces_endpoint enable_lora max_lora_rank max_loras max_cpu_loras "
        "structured_outputs_config runner convert distributed_executor_backend allowed_media_domains"
    ),
    "make_arg_parser:BaseFrontendArgs": "tool_call_parser chat_template enable_auto_tool_choice",
    "StructuredOutputsConfig": "backend disable_any_whitespace",
    "VllmConfig": (
        "cache_config scheduler_config model_config structured_outputs_config speculative_config "
        "num_speculative_tokens"
    ),
    "vllm.config.CacheConfig": "kv_cache_size_tokens",
    "vllm.config.SchedulerConfig": "max_num_seqs max_num_batched_tokens scheduler_cls async_scheduling",
    "vllm.distributed.device_communicators.shm_broadcast.MessageQueue": "buffer",
    "vllm.distributed.device_communicators.shm_broadcast.ShmRingBuffer": "is_creator shared_memory",
    "vllm.config.ParallelConfig": "worker_extension_cls use_ray ray_runtime_env",
    "ModelConfig": (
        "max_model_len get_vocab_size get_hidden_size allowed_media_domains allowed_local_media_path "
        "is_multimodal_model enable_prompt_embeds hf_text_config"
    ),
    "LoRARequest": "lora_name lora_int_id lora_path",
    "LoRAModelManager": "model modules packed_modules is_pooling_model",
    "LoRAModel": "loras modules_to_save",
    "vllm.lora.lora_weights.LoRALayerWeights": "rank lora_a lora_b",
    f"{_SERVING}openai.models.serving.OpenAIServingModels": "registry lora_requests",
    "AsyncLLM": "errored vllm_config model_config output_processor renderer engine_core",
    "vllm.renderers.base.BaseRenderer": "default_cmpl_tok_params",
    "vllm.renderers.params.TokenizeParams": "max_total_tokens",
    "MediaConnector": "connection allowed_media_domains allowed_local_media_path",
    "OutputProcessor": "request_states",
    "vllm.v1.engine.output_processor.RequestState": (
        "request_id prompt_len stats is_prefilling num_cached_tokens"
    ),
    "vllm.v1.engine.output_processor.OutputProcessorOutput": "request_outputs reqs_to_abort",
    "vllm.v1.metrics.stats.RequestStateStats": (
        "num_generation_tokens arrival_time queued_ts scheduled_ts first_token_ts last_token_ts "
        "first_token_latency"
    ),
    "vllm.v1.metrics.stats.FinishedRequestStats": (
        "finish_reason e2e_latency num_prompt_tokens num_generation_tokens queued_time prefill_time "
        "decode_time"
    ),
    "SchedulerStats": "num_running_reqs kv_cache_usage prefix_cache_stats iteration_details",
    "vllm.v1.metrics.stats.PrefixCacheStats": "queries hits",
    "vllm.v1.metrics.stats.SchedulerIterationDetails": (
        "num_ctx_tokens num_generation_requests num_generation_tokens elapsed_ms is_dummy"
    ),
    "IterationStats": (
        "iteration_timestamp num_prompt_tokens num_generation_tokens prompt_token_stats num_preempted_reqs "
        "finished_requests time_to_first_tokens_iter inter_token_latencies_iter"
    ),
    "vllm.v1.metrics.stats.PromptTokenStats": "computed",
    "RequestOutput": "outputs prompt_token_ids",
    "vllm.outputs.CompletionOutput": "index text token_ids finish_reason stop_reason",
    "RequestOutputKind": "DELTA",
    "SamplingParams": (
        "max_tokens temperature output_kind structured_outputs detokenize allowed_token_ids logit_bias "
        "min_tokens all_stop_token_ids bad_words_token_ids"
    ),
    "StructuredOutputsParams": "json regex choice grammar structural_tag _backend _backend_was_auto",
    "VLLMValidationError": "parameter",
    "ErrorResponse": "error",
    "ErrorResponse:ErrorInfo": "message type param code",
    "ChatCompletionRequest": (
        "n stream_options tools logprobs echo return_token_ids return_prompt_text add_generation_prompt "
        "temperature top_p min_p presence_penalty frequency_penalty repetition_penalty length_penalty "
        "stop_token_ids allowed_token_ids logit_bias cache_salt"
    ),
    "CompletionRequest": "prompt n temperature stop_token_ids allowed_token_ids logit_bias cache_salt",
    "DetokenizeRequest": "tokens",
    "TranscriptionRequest": "language response_format stream",
    "TranslationRequest": "language response_format stream",
    "AnthropicMessagesRequest": "cache_salt thinking",
    "AnthropicCountTokensRequest": "",
    f"{_SERVING}pooling.pooling.serving.ServingPooling": "pooling_task",
    f"{_SERVING}pooling.base.protocol.PoolingBasicRequestMixin": "truncate_prompt_tokens cache_salt",
    f"{_SERVING}pooling.base.protocol.EncodingRequestMixin": "encoding_format",
    "RerankRequest": "query documents max_tokens_per_doc chat_template_kwargs",
    f"{_SERVING}pooling.scoring.protocol.ScoreQueriesItemsRequest": "queries items",
    f"{_SERVING}pooling.scoring.protocol.ScoreDataRequest": "data_1 data_2",
    f"{_SERVING}pooling.scoring.protocol.ScoreTextRequest": "text_1 text_2",
    "OpenAIServingChat": (
        "enable_force_include_usage enable_prompt_tokens_details enable_log_outputs system_fingerprint "
        "engine_client"
    ),
    "vllm.v1.structured_output.backend_guidance.GuidanceBackend": "",
}
STATE = (
    "openai_serving_models openai_serving_chat openai_serving_completion anthropic_serving_messages "
    "serving_tokenization serving_embedding serving_scores serving_classification serving_pooling "
    "openai_serving_transcription openai_serving_translation"
)
"""The handlers that `init_app_state` sets, by the names of vLLM's own API server."""
OPTIONAL = {
    # What the engine does without, or has its own of.
    "vllm.renderers.base.BaseRenderer": "_process_tokens_async",
    "AsyncScheduler": "",
    "Scheduler": (
        "schedule requests structured_output_manager grammar_compile_error_reqs use_v2_model_runner "
        "add_request policy running waiting kv_cache_manager pause_state current_step max_model_len "
        "max_num_active_reqs max_num_scheduled_tokens num_waiting_for_streaming_input "
        "kv_holding_waiting num_spec_tokens prev_step_scheduled_req_ids requires_kv_delivery _free_request "
        "_preempt_request finish_requests update_from_output _update_after_schedule "
        "_handle_blocked_waiting_request _get_local_prefix_cache_hit _request_blocks_can_be_freed"
    ),
    "RequestQueue": (
        "add_request pop_request peek_request prepend_request prepend_requests remove_request remove_requests"
    ),
    "PriorityRequestQueue": "",
    "SchedulingPolicy": "PRIORITY",
    "SchedulerOutput": "scheduled_new_reqs num_scheduled_tokens",
    "vllm.v1.core.sched.output.NewRequestData": "req_id prompt_token_ids prefill_token_ids",
    "vllm.v1.structured_output.StructuredOutputManager": "accept_tokens",
    "Request": (
        "prompt_token_ids num_prompt_tokens num_output_tokens num_tokens _all_token_ids _output_token_ids "
        "sampling_params request_id stop_reason priority is_prefill_chunk next_decode_eligible_step "
        "num_tokens_with_spec num_output_placeholders num_computed_tokens lora_request "
        "prefill_stats take_prefill_stats client_index"
    ),
    "EngineCoreOutput": "request_id prefill_stats",
    "EngineCoreOutputs": "outputs",
    "vllm.v1.metrics.stats.PrefillStats": "num_computed_tokens num_cached_tokens",
    "CachedRequestState": "prompt_token_ids output_token_ids sampling_params",
    "VllmConfig": "use_v2_model_runner",
    "SamplingParams": "extra_args",
    "vllm.v1.engine.output_processor.RequestState": (
        "detokenizer logprobs_processor stream_interval sent_tokens_offset make_request_output request_index "
        "parent_req queue"
    ),
    "RequestOutputCollector": "get put output",
    "OpenAIServingChat": "enable_per_request_metrics _include_reasoning_tokens_details",
    "ChatCompletionRequest": "logprob_token_ids",
}

_Node = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def places() -> dict[str, tuple[str, ...]]:
    """Return the modules from which the application imports each name of vLLM."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(APPLICATION.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                found |= {alias.name: (node.module or "",) for alias in node.names}
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MOVED":
                found |= ast.literal_eval(node.value)
    return found


class Release:
    """The sources of one release of vLLM, in a folder that has `vllm` in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, ast.Module | None] = {}

    @property
    def version(self) -> str:
        """The version in the sources, without the part that names a build."""
        found = re.search(r"version = '([\d.]+\w*)", (self._folder / "vllm/_version.py").read_text("utf-8"))
        return found[1] if found else "?"

    def problems(self) -> Iterator[str]:
        """Yield everything that the engine needs and the release lacks."""
        for name, modules in places().items():
            if name not in OPTIONAL and not any(self._has(module, name) for module in modules):
                yield f"no {name} in {' or '.join(modules)}"
        for table, exactly in ((CALLED, False), (REPLACED, True)):
            for name, parameters in table.items():
                yield from self._call_problems(name, parameters.split(), exactly)
        for name, members in MEMBERS.items():
            yield from self._missing(name, members.split())
        handlers = "".join(path.read_text("utf-8") for path in self._folder.glob("vllm/entrypoints/**/*.py"))
        yield from (f"no state.{name}" for name in STATE.split() if f"state.{name} = " not in handlers)

    def lacking(self) -> Iterator[str]:
        """Yield everything that the release lacks and the engine can do without."""
        for name, members in OPTIONAL.items():
            yield from self._missing(name, members.split())

    def _module(self, name: str) -> ast.Module | None:
        if name not in self._modules:
            path = self._folder / name.replace(".", "/")
            files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()]
            self._modules[name] = ast.parse(files[0].read_text("utf-8")) if files else None
        return self._modules[name]

    def _has(self, module: str, name: str) -> bool:
        tree = self._module(module)
        if tree is None:
            return False
        bound = {alias.asname or alias.name for node in _imports(tree) for alias in node.names}
        bound |= {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return name in bound or bool(self._module(f"{module}.{name}") or self._defined(module, name))

    def _defined(self, module: str, name: str) -> tuple[str, _Node] | None:
        """Return the class or function that `module` has as `name`, and the module that defines it."""
        tree = self._module(module)
        if tree is None:
            return None
        for node in ast.walk(tree):
            if isinstance(node, _Node) and node.name == name:
                return module, node
        for node in _imports(tree):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return self._defined(self._absolute(module, node), alias.name)
        return None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = (self._folder / module.replace(".", "/") / "__init__.py").exists()
        parts = module.split(".")
        return ".".join([*parts[: len(parts) - node.level + package], *filter(None, [node.module])])

    def _find(self, name: str) -> tuple[str, _Node] | None:
        """Return what a table names: `Imported`, `Imported:Neighbour` or `vllm.module.Name`."""
        if name.startswith("vllm."):
            module, _, last = name.rpartition(".")
            return self._defined(module, last)
        imported, _, neighbour = name.partition(":")
        found = (self._defined(module, neighbour or imported) for module in places()[imported])
        return next(filter(None, found), None)

    def _classes(self, name: str) -> Iterator[ast.ClassDef]:
        """Yield a class and those that it inherits from, as far as they are vLLM's."""
        waiting = [self._find(name)]
        while waiting:
            found = waiting.pop(0)
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield found[1]
                bases = (base.value if isinstance(base, ast.Subscript) else base for base in found[1].bases)
                waiting += [self._defined(found[0], getattr(base, "id", "")) for base in bases]

    def _call_problems(self, name: str, given: list[str], exactly: bool) -> Iterator[str]:
        owner, _, method = name.rpartition(".")
        functions = [
            node
            for scope in (self._classes(owner) if owner else ())
            for node in scope.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == method
        ]
        found = self._find(name) if not owner or name.startswith("vllm.") else None
        function = functions[0] if functions else found[1] if found else None
        if function is None or isinstance(function, ast.ClassDef):
            yield f"no {name}()"
            return
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        required = {item.arg for item in positional[: len(positional) - len(arguments.defaults)]}
        required |= {
            item.arg
            for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if not default
        }
        all_names = [
            item.arg for item in (*positional, *arguments.kwonlyargs) if item.arg not in ("self", "cls")
        ]
        known = [item for item in given if item in all_names or arguments.kwarg is None]
        fits = (
            all_names == given
            if exactly
            else [item for item in all_names if item in known] == known
            and required - {"self", "cls"} <= set(given)
        )
        if not fits:
            yield f"{name}({', '.join(all_names)}), not ({', '.join(given)})"

    def _missing(self, name: str, members: list[str]) -> Iterator[str]:
        classes = list(self._classes(name))
        if not classes and not (members == [] and self._find(name)):
            yield f"no {name}"
            return
        has = {member for scope in classes for member in _members(scope)}
        yield from (f"no {name}.{member}" for member in members if member not in has)


def _imports(tree: ast.Module) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def _members(scope: ast.ClassDef) -> Iterator[str]:
    """Yield the names of a class's methods, fields and constants, and of what its methods set on `self`."""
    for node in ast.walk(scope):
        if isinstance(node, _Node):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
    for node in scope.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def main(folders: list[str]) -> int:
    """Print a line for each folder. Returns 1 if one of them lacks what the engine needs, else 0."""
    failed = False
    for folder in folders:
        release = Release(Path(folder))
        problems, lacking = list(release.problems()), list(release.lacking())
        failed |= bool(problems)
        verdict = "; ".join(problems) or "fits"
        print(f"vLLM {release.version}: {verdict}" + (f" (without: {'; '.join(lacking)})" if lacking else ""))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
