"""Lakes in S3, against a server that speaks its protocol, on loopback."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest
from lakes import CLAIMS

import heretix
from heretix.core.errors import StoreBusyError, StoreError
from heretix.lake.files import LOCK, Lake
from heretix.lake.query import query
from heretix.lake.verify import verify_lake
from heretix.lake.write import END_OF_TIME, compact_lake, compact_store, write_lake
from heretix.store import Store

OPTIONS = {"K": 4, "R": 2, "T": 4, "B": 200}


@pytest.fixture(scope="module")
def s3_server():
    """A server of S3 with an empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()


@pytest.fixture
def s3(s3_server, monkeypatch, request):
    """Where a lake can be made in a bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = request.node.name.replace("_", "-")[:40].strip("-")
    urllib.request.urlopen(
        urllib.request.Request(f"http://{s3_server}/{bucket}", method="PUT"), timeout=30
    ).close()
    return Lake(
        f"s3://{bucket}/some/lake?endpoint_override={s3_server}&scheme=http&region=us-east-1"
    )


def test_a_lake_in_a_bucket_does_what_one_on_a_disk_does(measured, s3):
    """Written, verified, asked, merged; a rerun reads its samples from there and calls nobody."""
    with Store.open(measured) as store:
        done = write_lake(store, s3)
    assert done.executions == 14
    assert verify_lake(s3, records=True).ok
    (row,) = query(s3, "SELECT count(*) AS n, sum(prob_true) AS s FROM samples").to_pylist()
    assert row["n"] == done.samples
    heretix.measure("One more.", model="mock:a", store=measured, **OPTIONS)
    with Store.open(measured) as store:
        moved = compact_store(store, s3, before=END_OF_TIME)
    assert moved.executions == 1
    assert moved.moved_executions == 15
    compact_lake(s3)
    assert verify_lake(s3).unlisted == ()
    beliefs = heretix.measure_many(CLAIMS, models=["mock:a"], store=measured, **OPTIONS)
    assert sum(belief.record.usage.called for belief in beliefs) == 0


def test_a_second_writer_is_kept_away(measured, s3):
    """By a lock that a killed writer's time ends."""
    lock = {"owner": "another", "expires_at": time.time() + 1000}
    s3.write(LOCK, json.dumps(lock).encode())
    with Store.open(measured) as store:
        with pytest.raises(StoreBusyError, match="one writer"):
            write_lake(store, s3)
        s3.write(LOCK, json.dumps({**lock, "expires_at": time.time() - 1}).encode())
        assert write_lake(store, s3).executions == 14
    assert s3.read(LOCK) is None


def test_a_bucket_that_is_not_there_is_an_error_of_the_store(s3):
    """With what to check, and exit code 3."""
    missing = Lake(s3.location.replace("s3://", "s3://no-such-"))
    with pytest.raises(StoreError, match="check that it is there") as caught:
        missing.write("x", b"x")
    assert caught.value.exit_code == 3
