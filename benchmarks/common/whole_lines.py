"""Files of results that runs add lines to, one run after the other."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, if there is one. A last line that a killed run has torn is removed."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return whole.decode("utf-8").splitlines()
