"""Workers of a tensor parallel engine wait for the memory of their GPUs. Only workers import this module."""

from serve_app.engine.continuing_core import ContinuingWorker
from serve_app.patches.vllm import have_workers_wait_for_memory


class GpuWorker(ContinuingWorker):
    """A worker extension without methods: because of it, every worker imports this module."""


have_workers_wait_for_memory()
