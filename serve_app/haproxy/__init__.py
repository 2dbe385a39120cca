"""HAProxy and its supervisor, which Ray Serve starts as HAProxy. Nothing in this package imports Ray."""
