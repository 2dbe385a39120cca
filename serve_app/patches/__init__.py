"""Every change that Tideserve makes to the code of Ray, vLLM, torch and uvicorn while it runs.

A module holds the changes to one library and imports that library. `patches.ray` imports Ray only inside its
functions, so a process without Ray can load it. A change that needs objects of Tideserve takes them as arguments.

Since: the release that the change was written for. Until: what would make the change unnecessary.

| function | what it changes | why | since | until | test |
|---|---|---|---|---|---|
| `ray.ask_gcs_seldom` | `ClusterNodeInfoCache.update` runs once a second | Ray's controller asks the GCS 30 times a second | Ray 2.60 | Ray asks at changes | `test_the_caches_of_rays_controller_ask_once_a_second` |
| `ray.version_each_deployment` | `application_state.deploy_args_to_deployment_info` gives each deployment a version of its class and arguments | Ray's version is a hash of the whole `args`, so a changed setting of the ingress would restart every engine | Ray 2.60 | Ray takes a version for each deployment | `test_changed_setting_of_the_ingress_restarts_no_other_deployment` |
| `ray.stop_named_replicas_first` | `DeploymentScheduler._get_replicas_to_stop` prefers replicas that the policy names | Ray takes no advice on which replica a scale-down ends, and the place of a larger replica must be free on one node | Ray 2.60 | Ray takes the replicas to stop | `test_named_replicas_are_stopped_first` |
| `ray_idle.rest_while_quiet` | `ServeController.run_control_loop_step`, `deployment_state.CONTROL_LOOP_INTERVAL_S`; `AutoscalingStateManager.record_*` wake the loop | Ray looks at everything ten times a second while nothing changes | Ray 2.60 | Ray's loop waits for events | `tests/patches/test_ray_idle.py` |
| `ray_idle.report_changes` | `ReplicaMetricsManager._push_autoscaling_metrics`, `RouterMetricsManager.push_autoscaling_metrics_to_controller` | idle replicas, handles and proxies call Ray's controller seven times a second with equal reports | Ray 2.60 | Ray sends changes | `tests/patches/test_ray_idle.py` |
| `ray.run_router_here` | `DeploymentHandle._init` before the first call | in a thread of its own, Ray cannot take back a queued request, which would wake a GPU | Ray 2.60 | an option of `serve.get_deployment_handle` | `tests/ingress/test_ray_router.py` |
| `ray.show_zero` | `Counter._record` without the check of `inc` | PromQL's `increase` misses the first count of a new series | Ray 2.60 | `inc` accepts zero | `test_a_counter_is_exported_at_zero` |
| `ray.draw_class_ids_from_kernel` | `ray.actor.ActorClassID.from_random` in a zygote | importing Ray Serve starts Ray's generator of random ids, and all forks would draw the same ids | Ray 2.60 | Ray draws no id during an import | `test_forks_draw_different_random_ids` |
| `ray.use_setproctitle` | `ray._raylet.setproctitle` in a fork of the zygote | Ray's own copy does not find the environment a second time | Ray 2.60 | Ray depends on setproctitle | `tests/zygote` |
| `ray.keep_log_handlers` | `logging._handlerList` is empty during the import of vLLM | vLLM's `dictConfig` closes the log of a Serve replica, and a restarted controller then stops the replica | vLLM 0.32 | vLLM leaves other loggers alone | `test_a_replicas_log_survives_vllms_set_up` |
| `uvicorn.listen_beside` | `Server.startup` opens a Unix socket, too | HAProxy reaches it with 12 µs a token, a TCP port with 17 µs; Ray shows nobody its server | uvicorn 0.54 | Ray Serve takes a `uds` option | `tests/patches/test_uvicorn.py` |
| `uvicorn.ignore_upgrades` | `HttpToolsProtocol` serves a request with `Upgrade` without that header | uvicorn drops the body of such a request, and leaves a POST with `Upgrade: websocket` without an answer | uvicorn 0.54 | uvicorn serves such requests whole | `tests/patches/test_uvicorn.py` |
| `torch.one_gloo_device` | `distributed_c10d.ProcessGroupGloo` during the start of a worker | 13 process groups of one process wake 13 threads 100 times a second, 0.017 of a core | torch 2.13 | gloo shares its devices | `test_all_process_groups_share_one_thread` |
| `torch.permit_amx` | asks the kernel for AMX at the start of a worker | vLLM's kernels use it and do not ask, so an engine with a small model in bfloat16 ends with an illegal instruction | vLLM 0.32 | vLLM asks | `test_a_process_may_use_amx` |
| `vllm.InProcessExecutor` | `UniProcExecutor`; `gc.unfreeze` does nothing at its end | vLLM's end of a worker searches all objects for garbage, and holds a drained replica's GPU for 4.5 s | vLLM 0.32 | vLLM collects no garbage at its end | `test_the_end_of_a_core_collects_no_frozen_garbage` |
| `vllm.forward_at_once` | class of one `RequestOutputCollector` | waking the reader's task is a third of the front end's time per token at 256 streams | vLLM 0.32 | vLLM has a callback for outputs | `tests/patches/test_vllm.py` |
| `vllm.wrap_method` | `generate`, `add_request`, `process_outputs` and `add_request_async` of one `AsyncLLM`, its `OutputProcessor` and its core client | vLLM has no hook for structured outputs, continued streams, request records and bounds of a sequence | vLLM 0.32 | vLLM has a request middleware | `tests/engine` |
| `vllm.wrap_method` | `add_request` and `abort` of one `AsyncLLM` | vLLM's speech handler aborts by the request's id, which clients choose | vLLM 0.32 | vLLM's handlers abort by ids of vLLM's own | `test_cancelled_client_ends_no_call_with_the_same_id` |
| `vllm.wrap_method` | `_process_tokens` and `_process_tokens_async` of one renderer | vLLM keeps media by `uuid`, which clients choose | vLLM 0.32 | vLLM adds the cache salt to a `uuid` | `test_a_uuid_means_the_media_of_its_own_key` |
| `vllm.wrap_method` | `chat_completion_stream_generator` of one handler | vLLM builds a pydantic model per token | vLLM 0.32 | vLLM's encoder is as lean | `tests/engine/test_plain_stream.py` |
| `vllm.wrap_method` | `is_base_model` and `model_name` of one `OpenAIServingModels` | a live knob has the aliases of a model | vLLM 0.32 | vLLM takes names while it runs | `tests/engine/test_chat_operations.py` |
| `vllm.wrap_method` | `WorkerLoRAManager._load_adapter`, in `engine/checking_worker.py` | vLLM leaves out tensors that fit no module, and serves the adapter as the base model | vLLM 0.32 | vLLM refuses such an adapter | `tests/engine/test_checking_worker.py` |
| `vllm.keep_chat_errors` | `message_stream_converter` of one handler | vLLM reports an error within a chat stream as one of its own; its thinking blocks begin without `signature` | vLLM 0.32 | vLLM forwards the error, and sends the field | `tests/engine/test_messages_operation.py` |
| `vllm.raise_generation_errors` | `_convert_generation_error_to_streaming_response` of one Responses handler | vLLM's union of events has no error, so a failed generation becomes an error of validation | vLLM 0.32 | vLLM sends `response.failed` | `test_failed_generation_before_any_output_has_a_status` |
| `vllm.replace_random_ids` | `random_uuid` in five modules | a continued response must have the item ids that its client knows | vLLM 0.32 | vLLM derives ids from the request's id | `tests/engine/test_responses_operation.py` |
| `vllm.skip_structured_output_checks` | `SamplingParams._validate_structured_outputs`, `validate_structural_tag_payload` | vLLM compiles a grammar on the event loop, a regular expression for up to 5 s | vLLM 0.32 | vLLM validates in a process | `tests/engine/grammar` |
| `vllm.split_prompts_in_workers` | `CachedRequestState.__post_init__` | vLLM's first model runner has no place for outputs in a new request | vLLM 0.32 | the first model runner is gone | `tests/engine/test_continued_call.py` |
| `vllm.compute_adapters_apart`, `cpu_lora` | `CpuPlatform.get_punica_wrapper` | on the CPU, a request without an adapter gets the answers of the last place's adapter, even after its removal; the layers copy an adapter's weights for each token | vLLM 0.32 | vLLM's CPU layers compute each adapter once | `tests/patches/test_cpu_lora.py` |
| `vllm.register_kernels_once` | `current_platform.register_triton_kernel_overrides` does nothing the second time | 0.3 s of CPU and a warning per kernel in every engine core | vLLM 0.32 | vLLM registers once | start of a warm engine, `benchmarks/cold_start` |
| `vllm.find_ray_again` | reload of `vllm.v1.executor.ray_utils` | a zygote imports vLLM without Ray, and vLLM would refuse tensor parallel engines | vLLM 0.32 | vLLM looks for Ray when it needs it | `tests/zygote` |

`vllm_compat` is no change: it finds names that have moved between releases of vLLM. `engine/continuing_core.py` uses
vLLM's own places for a scheduler and a worker extension. `env.py` has the variables by which Ray and HAProxy
load Tideserve's code.
"""  # noqa: E501  a table
