"""The collector of reference cycles during imports."""

import gc
from importlib import import_module

import pytest

from serve_app.zygote.collector import collector_off


def test_it_is_off_within_the_block_and_on_again_after_an_error() -> None:
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), collector_off():
        import_module("there_is_no_such_module")
    assert gc.isenabled()
