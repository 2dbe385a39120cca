import resource

from loadtests.client.connection import allow_many_connections


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allowed = allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed
        assert allowed > 512
        assert allow_many_connections() == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
