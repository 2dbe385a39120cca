"""A Postgres server of the tests, reached over a Unix socket."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def postgres_folder() -> str | None:
    """The folder of Postgres's programs; None without Postgres."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, _PLACES)])
    found = shutil.which("initdb", path=path)
    return None if found is None else str(Path(found).resolve().parent)


@contextmanager
def postgres(programs: str) -> Iterator[str]:
    """Run a server, and give the URL of its database."""
    # Postgres does not run as root, and the user `postgres` cannot look into pytest's folders.
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    with tempfile.TemporaryDirectory(prefix="tide-pg-") as folder:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        data = f"{folder}/data"

        def run(program: str, *arguments: str) -> None:
            command = [f"{programs}/{program}", "-D", data, *arguments]
            done = subprocess.run(
                command,
                check=False,
                cwd=folder,
                user=user if os.geteuid() == 0 else None,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr

        run("initdb", "--auth=trust", "--username=tide", "--encoding=UTF8", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        run("pg_ctl", "--wait", "--log", f"{folder}/log", "--options", options, "start")
        try:
            yield f"postgresql://tide@/postgres?host={folder}"
        finally:
            run("pg_ctl", "--wait", "--mode", "immediate", "stop")
