"""The tables that the tests of fencing write to."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

RESOURCE = "reports/Beijing"

metadata = MetaData()

reports = Table(
    "reports",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("region", String(50)),
    Column("body", String(200)),
    Column("fencing_token", BigInteger, nullable=True),  # nullable: what a careless schema allows
)

other = Table("other", metadata, Column("id", Integer, primary_key=True, autoincrement=False))
