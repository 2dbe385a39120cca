"""HAProxy under a supervisor of ours, which Ray Serve starts as HAProxy. Nothing in here imports Ray."""
