"""Runs a program that a model wrote in a process of its own, with limits.

What it protects against: the mistakes of models. An endless loop, a memory bomb, a flood of output, a removed file, a
request to some server, a process left behind. It is no prison for code that means harm: the guard sits in the same
interpreter as the program and knows what Python announces (its audit events), so a program that sets out to get round it
can, in particular through C. Where the code itself may be hostile, put the whole evaluation into a container or a virtual
machine.

Three processes: the caller; a supervisor, which is this file run as a script by a fresh ``python -I``; and the worker that
the supervisor forks, in which the guard is up and the limits are set before the program starts. Every process that descends
from the worker is killed with it, also those in other sessions and those whose parent is gone (on Linux the supervisor
inherits orphans; elsewhere the worker's process group is killed). Reading files is allowed, so that modules can be imported.

This file imports nothing but the standard library. It needs POSIX; macOS ignores the memory limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import linecache
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

Status = Literal["passed", "failed", "timeout", "memory", "crash"]
TAIL = 2000
"""Characters that are kept of the end of an output."""
GRACE = 10.0
"""Seconds that the supervisor gets beyond the program's for its own start and for clearing up."""
SOURCE = "<candidate>"
"""The program's file name in a traceback."""
KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""What the interpreter and numpy may need to run at all; everything else is left out."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Args:
        seconds: wall-clock time.
        cpu_seconds: processor time, of one process; rounded up to whole seconds.
        memory: address space in bytes, of one process.
        output: bytes of standard output, of standard error, and of each file it writes.
    """

    seconds: float = 20.0
    cpu_seconds: float = 10.0
    memory: int = 2 << 30
    output: int = 1 << 20


@dataclass(frozen=True)
class Result:
    """How a program ended.

    Attributes:
        status: ``"passed"``: it ran to its end; ``"failed"``: an exception, or it left by ``sys.exit``; ``"timeout"``: of
            wall-clock or processor time; ``"memory"``: a ``MemoryError``; ``"crash"``: a signal, or ``os._exit``.
        seconds: wall-clock time, the interpreter's start included.
        stdout, stderr: the end of its outputs; ``stderr`` has the traceback.
    """

    status: Status
    seconds: float
    stdout: str
    stderr: str

    @property
    def passed(self) -> bool:
        """Whether it ran to its end."""
        return self.status == "passed"


def run(code: str, limits: Limits | None = None) -> Result:
    """Run a Python program and say how it ended.

    Its standard input is empty, its environment is cleaned, its working directory is a temporary one, which is removed
    afterwards. ``__name__`` is not ``"__main__"``, so that what stands under that condition is left out. Reaching the last
    line is what counts as passed, so a program that leaves early does not.

    Args:
        code: the source.
        limits: what it may use, :class:`Limits` as it is unless given.
    """
    limits = limits or Limits()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hf-lossy-sandbox-", ignore_cleanup_errors=True) as kept:
        folder = Path(os.path.realpath(kept))
        place = folder / "work"
        place.mkdir()
        # the supervisor's own working directory is not the program's: it must not import what the program wrote
        with subprocess.Popen(
            [sys.executable, "-I", "-B", str(Path(__file__).resolve()), str(folder), json.dumps(asdict(limits))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=_environment(place),
            start_new_session=True,
        ) as supervisor:
            try:
                said, errors = supervisor.communicate(code.encode("utf-8", "replace"), limits.seconds + GRACE)
            except BaseException as error:  # its time is over, or ours: Ctrl-C
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(supervisor.pid, signal.SIGKILL)
                supervisor.communicate()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                said, errors = b"timeout", b""
        if supervisor.returncode > 0:
            raise RuntimeError(f"the sandbox is broken: {errors.decode(errors='replace')[-TAIL:]}")
        status = said.decode() or "crash"  # nothing said: the supervisor itself was killed
        outputs = [_tail(folder / name) for name in ("stdout", "stderr")]
    return Result(status, time.perf_counter() - began, *outputs)  # type: ignore[arg-type]


def _environment(place: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "HOME": str(place), "TMPDIR": str(place), "LANG": "C.UTF-8", "PATH": ""}


def _tail(path: Path) -> str:
    if not path.is_file():  # stopped before the program began
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4 * TAIL))
        return file.read().decode(errors="replace")[-TAIL:]


# --- the supervisor ----------------------------------------------------------------------------------------------------


def supervise(folder: Path, limits: Limits) -> Status:
    """Fork the worker, wait for it, and leave nothing of it alive. Reads the program from standard input."""
    code = sys.stdin.buffer.read().decode()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans below become children of this process
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: die with the caller
    verdict, mouth = os.pipe()
    parent = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(verdict)
        if sys.platform == "linux":
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        try:
            if os.getppid() == parent:
                work(code, folder, limits, mouth)
        except BaseException as error:  # not the program's: it was not reached
            os.write(mouth, f"broken: {error!r}".encode()[:TAIL])
        finally:
            os._exit(1)
    os.close(mouth)
    deadline = time.monotonic() + limits.seconds
    while (how := _ended(worker)) is None and time.monotonic() < deadline:
        time.sleep(0.005)
    _clear(worker)
    os.set_blocking(verdict, False)
    try:
        word = os.read(verdict, TAIL).decode(errors="replace")
    except BlockingIOError:
        word = ""
    if word.startswith("broken"):
        raise RuntimeError(word)
    if how is None:
        return "timeout"
    if os.WIFSIGNALED(how):
        return "timeout" if os.WTERMSIG(how) == signal.SIGXCPU else "crash"
    return word if word in ("passed", "failed", "memory") else "crash"  # type: ignore[return-value]


def _ended(worker: int) -> int | None:
    """The worker's exit status, or None while it runs."""
    pid, how = os.waitpid(worker, os.WNOHANG)
    return how if pid else None


def _clear(worker: int) -> None:
    """Kill all that is left of the worker's family."""
    deadline = time.monotonic() + GRACE / 2
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # no child is left, and every orphan would be one
        time.sleep(0.002)


def _descendants() -> list[int]:
    """The children of this process, and theirs, as ``/proc`` shows them; none where there is no ``/proc``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found, ahead = list[int](), [os.getpid()]
    while ahead:
        ahead = [child for pid in ahead for child in children.get(pid, ())]
        found += ahead
    return found


# --- the worker --------------------------------------------------------------------------------------------------------


def work(code: str, folder: Path, limits: Limits, mouth: int) -> NoReturn:
    """Run the program in this process under limits and guard, write one word into ``mouth``, and exit."""
    os.setpgid(0, 0)
    place = folder / "work"
    os.chdir(place)
    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600) for name in ("stdout", "stderr")]
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    for kind, most in (
        (resource.RLIMIT_CPU, math.ceil(limits.cpu_seconds)),
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_FSIZE, limits.output),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        if kind != resource.RLIMIT_AS or sys.platform == "linux":
            allowed = resource.getrlimit(kind)[1]
            most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            # processor time: the soft limit's signal says what it was; a program may catch it, but the clock runs on
            resource.setrlimit(kind, (most, allowed if kind == resource.RLIMIT_CPU else most))
    write, leave, flush = os.write, os._exit, (sys.stdout.flush, sys.stderr.flush)
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module  # dataclasses and pickle look a class's module up there
    sys.modules["__main__"] = module  # not this file
    sys.argv = ["candidate"]
    linecache.cache[SOURCE] = (len(code), None, code.splitlines(keepends=True), SOURCE)  # for the traceback
    guard(str(place))
    word = b"failed"
    try:
        exec(compile(code, SOURCE, "exec"), module.__dict__)
        word = b"passed"
    except MemoryError:
        word = b"memory"
    except BaseException as error:  # SystemExit too: leaving before the last test is no pass
        own = error.__traceback__
        with contextlib.suppress(Exception):  # no memory left, or output, or a __str__ that fails
            traceback.print_exception(type(error), error, own.tb_next if own else None)
    try:
        for one in flush:
            one()
    except (OSError, ValueError):  # the output's limit, or the program has closed it
        word = b"failed"
    write(mouth, word)
    leave(0)


REFUSED = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.kill",
    "os.killpg",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.link",
    "os.symlink",
    "os.startfile",
    "pty.spawn",
    "resource.prlimit",
    "resource.setrlimit",
    "signal.pthread_kill",
    "subprocess.Popen",
    "webbrowser.open",
)
"""Audit events that a program has no need of."""
NETWORK = (
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyaddr",
    "socket.gethostbyname",
    "socket.getnameinfo",
    "socket.sendmsg",
    "socket.sendto",
)
CHANGING = {
    "os.chflags": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.removexattr": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.setxattr": 1,
    "os.truncate": 1,
    "os.utime": 1,
    "shutil.rmtree": 1,
    "sqlite3.connect": 1,
}
"""Audit events that change a file: how many of their first arguments are paths."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def guard(place: str) -> None:
    """From here on this process may write files below ``place`` only, and neither talk to the network nor start processes.

    It cannot be taken down again: audit hooks stay for the life of the interpreter.
    """
    real, decode = os.path.realpath, os.fsdecode
    refused = frozenset(REFUSED + NETWORK)
    local, names = place + os.sep, (str, bytes, os.PathLike)

    def refuse(what: str) -> NoReturn:
        raise PermissionError(f"not allowed in the sandbox: {what}")

    def check(path: Any, event: str) -> None:
        if isinstance(path, names):
            if not (real(decode(path)) + os.sep).startswith(local):
                refuse(f"{event} of {path!r}, which lies outside its folder")
        elif not isinstance(path, int):
            refuse(f"{event} of {path!r}")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if flags & WRITING if isinstance(flags, int) else set(str(mode)) & set("wax+"):
                check(path, "open for writing")
        elif event in refused:
            refuse(event)
        elif event in CHANGING:
            paths = args[: CHANGING[event]]
            if event != "sqlite3.connect" or paths != (":memory:",):
                for path in paths:
                    check(path, event)
        elif event == "socket.__new__":
            if args[1] != socket.AF_UNIX:  # event loops wake themselves through a local pair
                refuse("a network socket")
        elif event == "ctypes.dlopen":
            if args[0] is not None:  # numpy imports ctypes, which opens the interpreter itself
                refuse(f"loading {args[0]!r}")
        elif event in ("ctypes.dlsym", "ctypes.dlsym/handle") and not str(args[1]).startswith("Py"):
            refuse(f"the C function {args[1]!r}")

    # what starts processes without announcing it
    import _posixsubprocess

    def fork_exec(*args: Any) -> NoReturn:
        refuse("starting a process")

    _posixsubprocess.fork_exec = fork_exec
    if hasattr(subprocess, "_fork_exec"):
        subprocess._fork_exec = fork_exec
    sys.addaudithook(hook)


if __name__ == "__main__":
    sys.stdout.write(supervise(Path(sys.argv[1]), Limits(**json.loads(sys.argv[2]))))
