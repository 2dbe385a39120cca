"""The memory of a model on GPUs: weights, KV cache and what vLLM needs beside them. Pure arithmetic."""
