"""The examples in docs/fencing.md do what the page says: each runs, and runs again refused with an older token."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, select, text

from ejpy.errors import StaleAttempt
from ejpy.fencing.sql import metadata
from ejpy.job import ShardContext, ShardedJob
from tests.fencing.old_owner import s3_client

PAGE = Path(__file__).parents[2] / "docs" / "fencing.md"
REGION = "Beijing"

own = MetaData()
orders = Table("orders", own, Column("region", String), Column("amount", Integer))
totals = Table("totals", own, Column("region", String, primary_key=True), Column("total", Integer))
reports = Table("reports", own, Column("region", String), Column("body", String), Column("fencing_token", BigInteger))


def examples() -> dict[str, str]:
    """The jobs of the page by the name of their class."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return {re.findall(r"^class (\w+)\(ShardedJob\)", block, re.MULTILINE)[0]: block for block in blocks}


@pytest.fixture
def places(tmp_path: Path, redis_port: int, s3_endpoint: str) -> Iterator[dict[str, Any]]:
    """What the examples leave to the reader."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    for known in (metadata, own):
        known.create_all(engine)
    with engine.begin() as connection:
        connection.execute(orders.insert(), [{"region": REGION, "amount": 70}, {"region": REGION, "amount": 50}])
        connection.execute(totals.insert(), {"region": REGION, "total": 0})
        connection.execute(reports.insert(), {"region": REGION, "body": "", "fencing_token": 0})
    s3 = s3_client(s3_endpoint)
    s3.create_bucket(Bucket="shop")
    with redis.Redis(port=redis_port, decode_responses=True) as client:
        client.flushall()
        yield {"engine": engine, "reports": reports, "directory": tmp_path, "redis_client": client, "s3": s3}
    engine.dispose()


def total_in_table(places: dict[str, Any]) -> object:
    with places["engine"].connect() as connection:
        return connection.execute(text("SELECT total FROM totals")).scalar_one()


def report_in_table(places: dict[str, Any]) -> object:
    with places["engine"].connect() as connection:
        return tuple(connection.execute(select(reports.c.body, reports.c.fencing_token)).one())


RESULTS: dict[str, tuple[Callable[[dict[str, Any]], object], object]] = {
    "DailyTotals": (total_in_table, 120),
    "Reports": (report_in_table, ("…", 57)),
    "Export": (lambda places: (places["directory"] / "export-0.csv").read_text().splitlines()[-1], "999"),
    "Cache": (
        lambda places: (places["redis_client"].get("total:Beijing"), places["redis_client"].ttl("orders:{Beijing}")),
        ("120", 3600),
    ),
    "Publish": (
        lambda places: places["s3"].get_object(Bucket="shop", Key="orders/Beijing/newest.json")["Body"].read(),
        b'{"data": "orders/Beijing/57.parquet", "token": 57}',
    ),
}


def test_every_example_is_tried() -> None:
    assert set(examples()) == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_an_example_does_what_it_says_and_refuses_an_older_attempt(name: str, places: dict[str, Any]) -> None:
    exec(compile(examples()[name], str(PAGE), "exec"), places)
    job = places[name]
    assert inspect.isclass(job)
    assert issubclass(job, ShardedJob)

    def run(token: int) -> None:
        job().execute(ShardContext.for_test(sharding_parameter=REGION, fencing_token=token))

    result, expected = RESULTS[name]
    for _ in range(2):
        run(57)
        assert result(places) == expected
    with pytest.raises(StaleAttempt):
        run(41)
    assert result(places) == expected


def test_the_names_that_the_page_tells_of_are_there() -> None:
    for module, name in re.findall(r"`(sql|files|redis|s3)\.(\w+)`", PAGE.read_text(encoding="utf-8")):
        assert hasattr(__import__(f"ejpy.fencing.{module}", fromlist=[name]), name)
