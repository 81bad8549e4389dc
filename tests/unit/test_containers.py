"""The container files fit the repository and each other, as far as that can be told without a container engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKER = ROOT / "docker"


def compose(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return document


@pytest.fixture
def worker() -> dict[str, Any]:
    found: dict[str, Any] = compose("compose.yml")["services"]["worker"]
    return found


@pytest.fixture
def dockerfile() -> list[tuple[str, str]]:
    """Instructions and their arguments."""
    text = re.sub(r"\\\n\s*", "", (DOCKER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def test_the_image_copies_what_exists_and_what_the_build_context_has(dockerfile: list[tuple[str, str]]) -> None:
    let_in = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for name, argument in dockerfile if name == "COPY" for source in argument.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_does_not_run_as_root(dockerfile: list[tuple[str, str]]) -> None:
    names = [name for name, _ in dockerfile]
    user = dict(dockerfile)["USER"]
    assert user not in ("root", "0")
    assert f"useradd --system --no-create-home {user}" in dict(dockerfile)["RUN"]
    assert names.index("USER") > names.index("RUN")


def test_three_workers_wait_for_zookeeper_and_know_its_address(worker: dict[str, Any]) -> None:
    services = compose("compose.yml")["services"]
    assert worker["deploy"]["replicas"] == 3
    assert worker["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
    (url,) = [word for word in worker["command"] if word.startswith("zookeeper://")]
    host = url.removeprefix("zookeeper://").split(":")[0]
    assert host in services
    assert "healthcheck" in services[host]


def test_the_workers_run_jobs_that_the_image_has(worker: dict[str, Any], dockerfile: list[tuple[str, str]]) -> None:
    config = worker["command"][worker["command"].index("--config") + 1]
    assert (ROOT / config).is_file()
    assert Path(config).parts[0] in [source for name, text in dockerfile if name == "COPY" for source in text.split()]
    assert (DOCKER / worker["build"]["context"]).resolve() == ROOT
    assert (ROOT / worker["build"]["dockerfile"]).is_file()


def test_the_workers_share_the_folder_of_results(worker: dict[str, Any], dockerfile: list[tuple[str, str]]) -> None:
    volume, _, mounted_at = worker["volumes"][0].partition(":")
    assert volume in compose("compose.yml")["volumes"]
    assert mounted_at == f"{dict(dockerfile)['WORKDIR']}/var"
    assert 'db": "var/' in (ROOT / "conf" / "jobs.yml").read_text()


def test_the_test_server_is_reachable_from_this_machine_only_where_scripts_test_looks() -> None:
    server = compose("compose.test.yml")["services"]["zookeeper"]
    (port,) = server["ports"]
    assert port.startswith("127.0.0.1:")
    variable = "${EJPY_TEST_ZOOKEEPER_PORT:-21811}"
    assert variable in port
    assert variable in (ROOT / "scripts" / "test").read_text()
    assert server["image"] == compose("compose.yml")["services"]["zookeeper"]["image"]
