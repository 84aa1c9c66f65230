"""MLflow and Weights & Biases get the numbers of the result, in the real packages and without a network."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import varangian as vg
from varangian import studies
from varangian.report.mlflow import MLflow
from varangian.report.wandb import WandB

STUDY = studies.target_localization(agents=6)
RUN: dict[str, Any] = {"attack": STUDY.attacks[0], "byzantine": 2, "seeds": 2, "rounds": 8}


def expected(result: Any, metric: str, seed: int) -> tuple[list[float], list[float]]:
    """The mean and the worst over normal agents, round by round."""
    values = result[metric].sel(seed=seed).where(~result["byzantine_agent"].sel(seed=seed))
    return values.mean("agent").values.tolist(), values.max("agent").values.tolist()


def test_mlflow_holds_the_curves_of_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    log = MLflow("tracked", uri)
    result = vg.simulate(STUDY, callbacks=[log.run("one", {"rule": "loss-based"})], **RUN)
    client = mlflow.MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name("tracked").experiment_id
    runs = {int(run.data.params["seed"]): run for run in client.search_runs([number])}
    assert sorted(runs) == [0, 1]
    for seed, run in runs.items():
        assert (run.info.run_name, run.info.status) == (f"one, seed {seed}", "FINISHED")
        assert run.data.params["rule"] == "loss-based"
        for metric in ("loss", "regret"):
            for of, values in zip(("mean", "worst"), expected(result, metric, seed), strict=True):
                history = client.get_metric_history(run.info.run_id, f"{metric}/{of}")
                assert [one.step for one in history] == list(range(1, 9))
                np.testing.assert_allclose([one.value for one in history], values, rtol=1e-5)
    vg.compare(STUDY, rules=["alone"], byzantine=[0], rounds=2, watchers=[log])
    third = next(run for run in client.search_runs([number]) if run.data.params["rule"] == "alone")
    assert third.info.run_name == "alone, 0 Byzantine, seed 0"


def records(file: Path) -> Iterator[Any]:
    """The records of a W&B file: after seven bytes, each has a checksum, a length and a type."""
    from wandb.proto import wandb_internal_pb2

    stored, place = file.read_bytes(), 7
    assert len(stored) < 2**15, "larger files have several blocks"
    while place + 7 < len(stored):
        _, length, _ = struct.unpack("<IHB", stored[place : place + 7])
        record = wandb_internal_pb2.Record()
        record.ParseFromString(stored[place + 7 : place + 7 + length])
        yield record
        place += 7 + length


def complete(file: Path) -> list[Any]:
    """All records of a run. A process of its own writes them, and on a busy machine it is late."""
    until = time.monotonic() + 120
    while True:
        found = list(records(file))
        if any(record.WhichOneof("record_type") == "exit" for record in found) or time.monotonic() > until:
            return found
        time.sleep(0.1)


def test_weights_and_biases_holds_the_curves_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    log = WandB("tracked", tmp_path)
    result = vg.simulate(STUDY, callbacks=[log.run("one", {"rule": "loss-based"})], **RUN)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    for file in files:
        found = complete(file)
        (started,) = (record.run for record in found if record.WhichOneof("record_type") == "run")
        settings = {item.key: json.loads(item.value_json) for item in started.config.update}
        assert started.display_name == f"one, seed {settings['seed']}"
        assert settings["rule"] == "loss-based"
        rows = [
            {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            for record in found
            if record.WhichOneof("record_type") == "history"
        ]
        mean, worst = expected(result, "regret", settings["seed"])
        np.testing.assert_allclose([row["regret/mean"] for row in rows], mean, rtol=1e-5)
        np.testing.assert_allclose([row["regret/worst"] for row in rows], worst, rtol=1e-5)
        assert [row["_step"] for row in rows] == list(range(1, 9))
