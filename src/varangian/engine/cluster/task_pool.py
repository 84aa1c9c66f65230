"""Independent pieces of work on a Ray cluster, one task for each. If a process dies, only its own piece is lost."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, cast

from varangian.core.errors import BadInput
from varangian.core.user_code import carried
from varangian.engine.cluster.ray_cluster import RayCluster, one_line
from varangian.engine.cluster.stop_sign import StopSign, until
from varangian.engine.process_pool import TRIES, Lost
from varangian.studies.data.locate import VARIABLE

Piece = TypeVar("Piece")
Done = TypeVar("Done")

SPARE = 2
"""How many pieces are submitted beyond those that can run at once, so that no core waits for the next piece."""
LOOK = 0.5
"""Seconds between two checks of the progress."""
GRACE = 10.0
"""Seconds that an interrupted piece has to write its checkpoint."""


def in_tasks(
    work: Callable[[Piece], Done],
    pieces: Sequence[Piece],
    cluster: RayCluster,
    begin: Callable[[Piece], object] = lambda piece: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Generator[tuple[Piece, Done | Lost]]:
    """Each piece and its result, in the order in which they finish.

    A piece whose process dies is tried `TRIES` times. Closing the generator stops all running pieces. An error in a
    piece is raised with a message of one line.

    Args:
        work: computes one piece; it must be picklable.
        pieces: what is to be computed.
        cluster: where; each task takes one core and the GPUs of a shard.
        begin: called with every piece when it is submitted.
        meanwhile: called about twice a second.
    """
    with cluster.connected():
        import ray as library
        from ray.exceptions import RayError, RayTaskError

        try:
            sent = library.put(carried(work))
        except (TypeError, AttributeError) as error:
            raise BadInput(f"this cannot be sent to other processes, run it here: {one_line(error)}") from error
        task: Any = library.remote(num_cpus=1, num_gpus=cluster.gpus_per_shard, max_retries=0)(_done)
        folders = _folders()
        sign = StopSign.new()
        waiting = deque((piece, 1) for piece in pieces)
        running: dict[Any, tuple[Piece, int]] = {}
        try:
            while waiting or running:
                most = cluster.tasks_at_once() + SPARE
                while waiting and len(running) < most:
                    piece, tries = waiting.popleft()
                    begin(piece)
                    running[task.options(name=str(piece)).remote(sent, piece, folders, sign)] = piece, tries
                ready, _ = library.wait(list(running), timeout=LOOK)
                meanwhile()
                for one in ready:
                    piece, tries = running.pop(one)
                    try:
                        # A copy: results in Ray's object store are read-only, and take up its memory.
                        done = cast(Done, deepcopy(library.get(one)))
                    except RayTaskError as error:
                        raise BadInput(f"{piece}: {_told(error.cause)}") from error
                    except RayError:
                        if tries < TRIES:
                            waiting.appendleft((piece, tries + 1))
                        else:
                            yield piece, Lost(None)
                    else:
                        yield piece, done
        finally:
            _end(list(running), sign)


def _done(work: Callable[[Piece], Done], piece: Piece, folders: Mapping[str, str], sign: StopSign) -> Done | None:
    """Compute one piece; this runs in a process of the cluster. `None` if the sign said to stop: nobody reads it."""
    import ray as library

    os.environ.update({name: folder for name, folder in folders.items() if Path(folder).is_dir()})
    if not library.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # by default Ray hides no GPU from tasks that asked for none
    return until(sign, lambda: work(piece))


def _folders() -> dict[str, str]:
    """The data folder of this machine. Other machines use it too, if they have such a folder."""
    folder = os.environ.get(VARIABLE)
    return {VARIABLE: str(Path(folder).expanduser().resolve())} if folder else {}


def _told(cause: BaseException) -> str:
    line = one_line(cause)
    if isinstance(cause, BadInput):
        return line
    if isinstance(cause, ImportError) or "No module named" in line:
        return f"a machine of the cluster lacks something ({line.partition(' traceback:')[0]}); install it there too"
    return f"failed: {type(cause).__name__}: {line}"


def _end(running: list[Any], sign: StopSign) -> None:
    """Interrupt running tasks, so that they can write a checkpoint, and kill those that do not stop in time."""
    import ray as library
    from ray.exceptions import RayError

    if not running:
        return
    with suppress(RayError):  # the cluster may be gone
        sign.put_up()
        try:
            _, deaf = library.wait(running, num_returns=len(running), timeout=GRACE)
            for one in deaf:
                library.cancel(one, force=True)
        finally:
            sign.take_down()
