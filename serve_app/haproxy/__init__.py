"""A supervisor of HAProxy, which Ray Serve starts as if it were HAProxy.

Ray looks after HAProxy with three health checks of 10 s. `RAY_SERVE_HAPROXY_BINARY_PATH` therefore names
`supervisor`, which amends the configuration that Ray writes (`configuration`), owns the listening sockets and
hands them on (`sockets`), and keeps HAProxy running (`keeper`). Every reload starts it, so nothing in here
imports Ray.
"""
