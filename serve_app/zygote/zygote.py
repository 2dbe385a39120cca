"""The zygote of a node: a process that has imported vLLM and Ray, and forks engine replicas and engine cores.

The zygote has one thread and has used neither a GPU nor OpenMP, so its forks may do anything. It ends with
its owner: the raylet whose worker started it, or `tideserve run`. If the zygote dies, its forks go on.

During its import Ray reads the job and the raylet's process id from the environment. So the zygote imports
Ray with the first request, in the environment of that request.
"""

import atexit
import fcntl
import gc
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from setproctitle import setproctitle

from serve_app import env
from serve_app.patches.ray import use_setproctitle
from serve_app.zygote.numa import set_memory_policy
from serve_app.zygote.python import STATUS, refusal_file
from serve_app.zygote.request import OOM_SCORE, MalformedRequestError, Request, close_all, is_own

_REQUEST_S = 5.0


@dataclass(slots=True)
class Zygote:
    """Takes requests on `listener` until the process of `owner`, a pidfd, ends."""

    listener: socket.socket
    owner: int
    with_ray: tuple[str, ...] = ()
    """Modules to import in the environment of the first request."""
    set_by_imports: dict[str, str] = field(default_factory=dict)
    """Variables that the first imports have set, as vLLM does for torch. Each fork gets them as well."""
    ready_at: float = 0.0
    """When all imports were done (Unix time); 0 before."""
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _clients: dict[int, socket.socket] = field(default_factory=dict)
    """By the id of the process that was forked for the client."""

    def serve(self) -> tuple[Request, list[int]] | None:
        """Fork until the owner ends. Returns None then, and in each fork its request."""
        wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (self.listener, wake, self.owner):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self.listener:
                    request = self._take()
                    if request is not None:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for number in (wake, wakened, self.owner):
                            os.close(number)
                        return request
                elif key.fd == wake:
                    with suppress(BlockingIOError):
                        os.read(wake, 4096)
                elif key.fd == self.owner:
                    return None
                else:
                    self._end_abandoned(key.data)
            self._reap()

    def _take(self) -> tuple[Request, list[int]] | None:
        """Fork for one client. Returns the request in the fork, and None in the zygote."""
        client, _ = self.listener.accept()
        client.settimeout(_REQUEST_S)  # a stopped client must not block the other clients
        passed: list[int] = []
        try:
            if not is_own(client):
                raise PermissionError("the request comes from another user's process")
            request, passed = Request.receive(client)
            if not self.ready_at:
                self.get_ready(request.environment)
            process = os.fork()
        except (EOFError, OSError, MalformedRequestError) as error:
            if not isinstance(error, EOFError):
                print(f"not forked: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            close_all(passed)  # left open, a pipe would never end for its reader
            client.close()
            return None
        if process == 0:
            # The fork itself answers, before its program: without an answer the client would run it too.
            with suppress(OSError):  # the client has died, and the zygote kills this fork
                client.sendall(STATUS.pack(os.getpid(), 0))
            client.close()
            self._close_all_sockets()
            return request, passed
        close_all(passed)
        self._clients[process] = client
        self._selector.register(client, selectors.EVENT_READ, process)
        return None

    def get_ready(self, environment: Mapping[str, str]) -> None:
        """Adopt `environment` and import the remaining modules."""
        adopt({**self.set_by_imports, **environment})
        _import(self.with_ray)
        gc.collect()
        gc.freeze()  # otherwise a collection would write to, and so copy, all pages that the forks share
        self.ready_at = time.time()

    def _close_all_sockets(self) -> None:
        self.listener.close()
        self._selector.close()
        for client in self._clients.values():
            client.close()

    def _end_abandoned(self, process: int) -> None:
        """Kill a process whose client has died, because nobody would wait for it."""
        if process in self._clients:
            os.kill(process, signal.SIGKILL)
            self._forget(process)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    return
                if process in self._clients:
                    with suppress(OSError):
                        self._clients[process].sendall(STATUS.pack(process, status))
                    self._forget(process)

    def _forget(self, process: int) -> None:
        client = self._clients.pop(process)
        self._selector.unregister(client)
        client.close()


def specialise(request: Request, passed: list[int]) -> None:
    """Turn this fork into the process that `request` describes, and run its program."""
    setproctitle("tideserve::Fork")
    with suppress(OSError):  # the group's other processes may have ended
        os.setpgid(0, request.group)
    with suppress(OSError):  # this process may not raise its priority
        os.setpriority(os.PRIO_PROCESS, 0, request.niceness)
    with suppress(OSError):  # those CPUs may be offline now
        os.sched_setaffinity(0, request.cpus)
    set_memory_policy(request.memory_policy)
    with suppress(OSError), open(OOM_SCORE, "w") as file:  # this process may not lower it
        file.write(str(request.oom_score_adj))
    if "--multiprocessing-fork" in request.arguments:
        multiprocessing.set_executable(env.PYTHON)  # an engine core's workers are forks of the zygote too
    highest = max([*request.descriptors, *passed, 2]) + 1
    moved = [_move(number, highest) for number in passed]
    for source, number in zip(moved, request.descriptors, strict=True):
        os.dup2(source, number)
        os.close(source)
    os.chdir(request.folder)
    adopt(request.environment)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # otherwise all forks would draw the same numbers
    threads = os.environ.get("OMP_NUM_THREADS", "")  # OpenMP has read only the zygote's own value
    if (torch := sys.modules.get("torch")) and threads.isdecimal():
        torch.set_num_threads(int(threads))
    use_setproctitle(setproctitle)
    # vLLM's workers call it when they stop. They would then search and copy all that the zygote has imported,
    # which takes two workers 4 s.
    gc.unfreeze = lambda: None
    run(request.arguments)


def end_after(program: Callable[[], None]) -> NoReturn:
    """Run `program`, and end the process as Python would, without taking its modules apart.

    Python frees each object of each module when it ends. For what the zygote has imported, this takes a fork
    1.6 to 2.4 s of CPU, while it still holds its GPU.
    """
    status = 0
    try:
        program()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, a reader that has left, or closed
            stream.flush()
    os._exit(status & 0xFF)


def adopt(environment: Mapping[str, str]) -> None:
    """Replace this process's environment by `environment`."""
    os.environ.clear()
    os.environ.update(environment)


def _move(number: int, least: int) -> int:
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(number)
    return moved


def run(arguments: list[str]) -> None:
    """Run Python's command line in this process: `-c CODE`, `-m MODULE` or a file, with arguments."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-c", "-m"):
        del rest[: 2 if rest[0] in ("-W", "-X") else 1]  # the interpreter's own options
    option = rest.pop(0) if rest and rest[0] in ("-c", "-m") else ""
    program = rest.pop(0)
    sys.argv = [option or program, *rest]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if option == "-c":
        sys.path[0] = ""
        code = compile(program, "<string>", "exec")
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        main.__file__ = program
        with open(program, "rb") as file:
            code = compile(file.read(), program, "exec")
    exec(code, main.__dict__)  # noqa: S102 as Python does with its command line


def _import(modules: Iterable[str]) -> None:
    """Import `modules`, and call the function of each `module:function`.

    Raises SystemExit if this process has threads or has used CUDA, and can no longer be forked.
    """
    with collector_off():
        for name in modules:
            path, _, function = name.partition(":")
            module = import_module(path)
            if function:
                getattr(module, function)()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        _refuse(f"{threads} threads after the imports: a fork would lack all but one")
    if _has_used_cuda():
        _refuse("an import has used CUDA, which no fork could use")


def _refuse(reason: str) -> NoReturn:
    with open(refusal_file(sys.argv[1]), "w", encoding="utf-8") as file:  # others would mostly refuse too
        file.write(reason)
    raise SystemExit(reason)


def _has_used_cuda() -> bool:
    """Whether forks of this process could not use CUDA, as after a mere count of the devices."""
    if (torch := sys.modules.get("torch")) is None:
        return False
    if (child := os.fork()) == 0:
        os._exit(torch.cuda._is_in_bad_fork())  # only a fork knows
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@contextmanager
def collector_off() -> Iterator[None]:
    """Disable the garbage collector within the block.

    Imports create a million objects and hardly any cycle. Searching them takes 1.6 of the 7.7 s of vLLM's
    imports on a quiet core (medians of three).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _without_ray() -> Iterator[None]:
    """Within the block, importing Ray fails as if Ray were not installed."""
    sys.modules["ray"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["ray"]


def main() -> None:
    """Listen at `SOCKET`, import the `MODULE`s, and fork until the process `OWNER` ends.

    Modules before `--` are imported at once and without Ray. Modules after `--` are imported with the first
    request.
    """
    path, process, *modules = sys.argv[1:]
    border = modules.index("--") if "--" in modules else len(modules)
    owner = os.pidfd_open(int(process))
    setproctitle(
        "tideserve::Zygote"
    )  # first of all: it writes over the environment, which moves when it changes
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(128)
    before = dict(os.environ)
    with _without_ray():
        _import(modules[:border])
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    zygote = Zygote(listener, owner, tuple(modules[border + 1 :]), changed)
    if not zygote.with_ray:
        zygote.get_ready(dict(os.environ))
    task = zygote.serve()
    if task is None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        return
    request, passed = task
    request.environment[env.ZYGOTE_READY_AT] = str(zygote.ready_at)
    for name, value in changed.items():
        request.environment.setdefault(name, value)
    end_after(lambda: specialise(request, passed))


if __name__ == "__main__":
    main()
