"""A Dockerfile as data: stages of instructions, with the build arguments that stand before the first one."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """Such as `RUN` and all that follows it, its lines joined."""

    word: str
    text: str

    @property
    def flags(self) -> dict[str, str]:
        """Such as `{"from": "build"}` of `COPY --from=build /a /b`."""
        return dict(re.findall(r"(?:^|\s)--([a-z-]+)=(\S+)", self.text)) if self.word == "COPY" else {}

    @property
    def paths(self) -> list[str]:
        """Of a COPY: its sources, and where they go as the last."""
        return [part for part in self.text.split() if not part.startswith("--")]

    @property
    def commands(self) -> list[list[str]]:
        """Of a RUN: every command of the shell as its words."""
        words = shlex.shlex(self.text, posix=True, punctuation_chars="();<>|&")
        words.whitespace_split = True
        found: list[list[str]] = [[]]
        for word in words:
            if word in ("{", "}") or set(word) <= set("();<>|&"):
                found.append([])
            else:
                found[-1].append(word)
        return [command for command in found if command]

    @property
    def pairs(self) -> dict[str, str]:
        """Of an ENV or LABEL: its names and values."""
        return dict(part.split("=", 1) for part in shlex.split(self.text))


@dataclass(frozen=True, slots=True)
class Stage:
    """From one FROM to the next."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        """Its instructions of one kind."""
        return [instruction for instruction in self.instructions if instruction.word == word]

    @property
    def environment(self) -> dict[str, str]:
        """What its ENV instructions set."""
        return {name: value for each in self.all("ENV") for name, value in each.pairs.items()}

    @property
    def arguments(self) -> dict[str, str]:
        """Its build arguments and their defaults."""
        return dict(_argument(each) for each in self.all("ARG"))

    @property
    def commands(self) -> list[list[str]]:
        """Every command of its RUN instructions, as its words."""
        return [command for run in self.all("RUN") for command in run.commands]

    @property
    def installed(self) -> set[str]:
        """The Debian packages that it installs, build arguments by their defaults."""
        found: list[str] = []
        for command in self.commands:
            if command[:2] == ["apt-get", "install"]:
                for word in command[2:]:
                    default = self.arguments.get(word.removeprefix("${").removesuffix("}"))
                    found += default.split() if default is not None else [word]
        return {word for word in found if not word.startswith("--")}


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A whole file."""

    arguments: dict[str, str]
    """Those before the first FROM, which is where bases are named."""
    stages: list[Stage]

    @staticmethod
    def read(text: str) -> Dockerfile:
        """Raises ValueError for an instruction before the first FROM that is not ARG."""
        arguments: dict[str, str] = {}
        stages: list[Stage] = []
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
            word, _, rest = line.strip().partition(" ")
            instruction = Instruction(word.upper(), rest.strip())
            if instruction.word == "FROM":
                base, _, name = instruction.text.partition(" AS ")
                stages.append(Stage(base, name))
            elif stages and word:
                stages[-1].instructions.append(instruction)
            elif instruction.word == "ARG":
                arguments |= [_argument(instruction)]
            elif word:
                raise ValueError(f"{word} before the first FROM")
        return Dockerfile(arguments, stages)

    @property
    def default(self) -> Stage:
        """What is built without a target: the last stage, or the one that it only names again."""
        last = self.stages[-1]
        return last if last.instructions else self.stage(last.base)

    def stage(self, name: str) -> Stage:
        """The stage of a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def resolved(self, text: str) -> str:
        """`text` with the arguments' defaults in place of `${NAME}`."""
        return re.sub(r"\$\{(\w+)\}", lambda found: self.arguments.get(found[1], found[0]), text)


def _argument(instruction: Instruction) -> tuple[str, str]:
    name, _, value = instruction.text.partition("=")
    return name, value.strip('"')


def ignored(path: str, patterns: list[str]) -> bool:
    """Whether a `.dockerignore` with `patterns` keeps `path`, relative to its folder, out of a build.

    The last pattern that matches the path or a folder above it decides; `!` lets in again.
    """
    parts = Path(path).parts
    folders = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    out = False
    for pattern in patterns:
        glob = pattern.removeprefix("!").strip("/")
        if glob.startswith("**/"):
            hit = any(fnmatchcase(part, glob.removeprefix("**/")) for part in parts)
        else:
            depth = glob.count("/")
            hit = any(fnmatchcase(each, glob) for each in folders if each.count("/") == depth)
        if hit:
            out = not pattern.startswith("!")
    return out


def read_ignore_file(path: Path) -> list[str]:
    """The patterns of a `.dockerignore`."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]
