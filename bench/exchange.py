"""Models of 130,890 weights between processes, beside Flower: `python -m bench.exchange [--flower BIN]`.

Agents send their model to each other in lockstep over mutual TLS, signed, and check what they hear. They do not train
or judge. With `--flower`, the folder of Flower's commands (such as a virtual environment's `bin`), a server sends the
same model to as many Flower nodes over plain HTTP, and each sends it back. Everything stays on this machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Event

import torch

from bench.timing import Row, show
from varangian.agent import keys
from varangian.agent.envelope import OVERHEAD, Verifier, seal
from varangian.agent.fleet import free_ports
from varangian.agent.identity import Identity
from varangian.agent.lockstep import Lockstep
from varangian.agent.mailbox import Mailbox
from varangian.agent.message import Header, Message, Schema, encode
from varangian.agent.sender import lockstep_resend
from varangian.agent.transport import Addresses, ZenohTransport

WEIGHTS = 130_890
FLEET, DEADLINE = "bench", 300.0
SKIPPED = 2
"""The first rounds do not count."""


def member(
    folder: Path, at: dict[str, str], name: str, rounds: int, told: Queue[tuple[list[float], float]], all_done: Barrier
) -> None:
    """One agent: it sends its model in every round, and waits for those of all others."""
    torch.set_num_threads(1)
    identity, others = Identity.load(folder / "agents" / name), {other: at[other] for other in at if other != name}
    schema = Schema(("weights",), ((WEIGHTS,),))
    box = Mailbox(list(others), schema, Verifier(identity, FLEET))
    transport = ZenohTransport(
        identity,
        FLEET,
        Addresses(at[name], others),
        lambda sender, payload: box.offer(sender, payload, time.monotonic()),
        schema.longest + OVERHEAD,
        lockstep_resend(DEADLINE),
    )
    lockstep, stop, model, took = Lockstep(box, transport, DEADLINE, DEADLINE), Event(), torch.randn(WEIGHTS), []
    lockstep.meet(list(others), stop)
    for round in range(rounds + SKIPPED):
        if round == SKIPPED:
            used = time.process_time()
        start = time.perf_counter()
        header = Header(name, 1, round, time.time(), schema.fingerprint)
        transport.publish(seal(encode(Message(header, model), schema), identity, FLEET))
        assert len(lockstep.wait(round, list(others), stop)) == len(others)
        took.append(time.perf_counter() - start)
    told.put((took[SKIPPED:], time.process_time() - used))
    all_done.wait()
    transport.close()


def varangian(agents: int, rounds: int) -> Row:
    """A fleet in which everyone hears everyone."""
    context = multiprocessing.get_context("forkserver")
    names = [f"agent-{number}" for number in range(agents)]
    at = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(agents), strict=True)}
    told, all_done = context.Queue(), context.Barrier(agents)
    with tempfile.TemporaryDirectory() as folder:
        keys.create_authority(Path(folder) / "keys")
        for name in names:
            keys.issue(Path(folder) / "keys", name, hosts=("127.0.0.1",))
        given = [(Path(folder) / "keys", at, name, rounds, told, all_done) for name in names]
        processes = [context.Process(target=member, args=one) for one in given]
        for process in processes:
            process.start()
        found = [told.get() for _ in processes]
        for process in processes:
            process.join()
    took = [time for times, _ in found for time in times]
    return row("Varangian", agents, agents * (agents - 1), took, sum(cpu for _, cpu in found) / rounds)


def row(what: str, parties: int, messages: int, took: list[float], cpu: float) -> Row:
    """What was measured, per round and per message."""
    seconds = statistics.median(took)
    return {
        "what": what,
        "processes that hold a model": parties,
        "messages a round": messages,
        "round, ms (median)": 1e3 * seconds,
        "messages/s": messages / seconds,
        "MB/s": 4e-6 * WEIGHTS * messages / seconds,
        "CPU a message, ms": 1e3 * cpu / messages,
    }


PROJECT = """
[project]
name = "exchange"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "exchange.server:app"
clientapp = "exchange.client:app"
[tool.flwr.app.config]
"""
SERVER = """
import json, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    given = context.run_config
    while len(list(grid.get_node_ids())) < given["nodes"]:
        time.sleep(0.5)
    model, took = Array(np.random.randn(given["weights"]).astype(np.float32)), []
    for _ in range(given["rounds"]):
        start = time.perf_counter()
        content = lambda: RecordDict({"model": ArrayRecord({"weights": model})})
        sent = [Message(content(), dst_node_id=one, message_type="query") for one in grid.get_node_ids()]
        replies = list(grid.send_and_receive(sent))
        assert len(replies) == given["nodes"] and all(one.has_content() for one in replies)
        took.append(time.perf_counter() - start)
    open(given["out"], "w").write(json.dumps(took))
"""
CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()

@app.query()
def query(message, context):
    message.content["model"]["weights"].numpy()
    return Message(message.content, reply_to=message)
"""


def cpu_of(processes: list[subprocess.Popen[bytes]]) -> float:
    """The processor time of these processes and of all that they have started, in seconds."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, more = set[int](), {process.pid for process in processes}
    while more:
        found |= more
        more = {pid for pid, (parent, _) in parents.items() if parent in found} - found
    return sum(parents[pid][1] for pid in found if pid in parents) / os.sysconf("SC_CLK_TCK")


def flower(commands: Path, nodes: int, rounds: int) -> Row:
    """The same model from Flower's server to its nodes and back. It starts a process for every message."""
    server, *ports = free_ports(nodes + 1)
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        config = {"rounds": rounds, "nodes": nodes, "weights": WEIGHTS, "out": str(folder / "took.json")}
        lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
        (folder / "exchange").mkdir()
        (folder / "pyproject.toml").write_text(f"{PROJECT}{lines}\n")
        (folder / ".flwr").mkdir()
        (folder / ".flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{server}"\ninsecure = true\n'
        )
        for name, text in (("__init__", ""), ("server", SERVER), ("client", CLIENT)):
            (folder / "exchange" / f"{name}.py").write_text(text)
        path = f"{commands.resolve()}{os.pathsep}{os.environ['PATH']}"
        mine = {**os.environ, "HOME": made, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
        mine.pop("PYTHONPATH", None)

        def started(*words: object) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([str(word) for word in words], env=mine, cwd=made)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        link = ("--host", "127.0.0.1", "--port", server, "--disable-runtime-dependency-installation")
        running = [started(commands / "flower-superlink", "--insecure", *link)]
        for port in ports:
            words = ("--insecure", "--superlink", f"127.0.0.1:{server}", "--port", port)
            running.append(started(commands / "flower-supernode", *words))
        time.sleep(20.0)
        before = cpu_of(running)
        subprocess.run([commands / "flwr", "run", made, "here"], env=mine, cwd=made, check=True)
        while not (folder / "took.json").exists():
            time.sleep(0.5)
        used = cpu_of(running) - before
        took: list[float] = json.loads((folder / "took.json").read_text())[SKIPPED:]
    return row("Flower", nodes + 1, 2 * nodes, took, used / rounds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.exchange", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where to write the table")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--flower", type=Path, help="the folder of Flower's commands")
    parser.add_argument("--flower-rounds", type=int, default=12)
    asked = parser.parse_args()
    rows = [varangian(agents, asked.rounds) for agents in (2, 3)]
    if asked.flower is not None:
        rows.append(flower(asked.flower, 2, asked.flower_rounds))
    show(rows, "Models of 130,890 weights between processes", asked.out / "cpu" / "exchange.csv")


if __name__ == "__main__":
    main()
