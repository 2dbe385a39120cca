"""The same streamed chat load against bare vLLM, Tideserve and Ray Serve LLM; see README.md."""
